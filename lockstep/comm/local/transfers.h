// SPDX-License-Identifier: BSD-3-Clause
// Makes the transfers of each collective.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/comm/local/host_tensor.h"
#include "lockstep/comm/local/transfer.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::local {

// For all_reduce and reduce. The pieces lie in own_share, in ascending order.
std::shared_ptr<Transfer> reduce_transfer(const Call& call, HostTensor tensor, int rank, int size,
                                          std::vector<Piece> pieces = {});
// The part of a range that one rank reduces for all.
ElementRange share_of(ElementRange whole, int rank, int size, std::int64_t element_bytes);
std::shared_ptr<Transfer> reduce_scatter_transfer(const Call& call, HostTensor output,
                                                  std::vector<HostTensor> inputs, int rank);
std::shared_ptr<Transfer> broadcast_transfer(const Call& call, HostTensor tensor, int rank);
// For all_gather and gather. `outputs` is empty on ranks that receive nothing.
std::shared_ptr<Transfer> gather_transfer(const Call& call, std::vector<HostTensor> outputs,
                                          HostTensor input);
// `inputs` is empty except on root.
std::shared_ptr<Transfer> scatter_transfer(const Call& call, HostTensor output,
                                           std::vector<HostTensor> inputs, int rank, int size);
// Moves no data. Done when every rank has made this call.
std::shared_ptr<Transfer> barrier_transfer(const Call& call);
// Moves no data. Done when every rank has made this all_to_all and the ranks' sizes match
// (exchange_sizes.h); otherwise UsageError on every rank.
std::shared_ptr<Transfer> exchange_agreement(std::vector<std::int64_t> sizes,
                                             std::string_view backend, int rank);

// Lets the ranks agree on the call's number, and vote; `accept` is this rank's vote. When it is
// done, votes()[r] is rank r's vote.
class VoteTransfer : public Transfer {
 public:
  VoteTransfer(const Call& call, bool accept) : Transfer(call, 0), accept_(accept) {}
  const std::vector<std::uint8_t>& votes() const { return votes_; }

  // Ranks vote on a tensor without elements, too.
  bool empty() const override { return false; }
  void copy_in(ElementRange, std::byte* payload) override { *payload = std::byte{accept_}; }
  void combine(ElementRange, std::span<std::byte* const> payloads) override {
    for (const std::byte* payload : payloads)
      votes_.push_back(std::to_integer<std::uint8_t>(*payload));
  }

 private:
  bool accept_;
  std::vector<std::uint8_t> votes_;
};

}  // namespace lockstep::local
