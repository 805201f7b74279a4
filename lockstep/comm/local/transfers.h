// SPDX-License-Identifier: BSD-3-Clause
// Transfers, which define what a collective does with the bytes of one tensor, and the makers of
// each collective's transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/task_engine.h"
#include "lockstep/tensor/piece.h"

namespace lockstep::local {

// Keeps the memory, not the tensor. The tensor's owner may give it another storage meanwhile, or
// after an error, while a peer still writes here.
class HostTensor {
 public:
  // `tensor` must be contiguous and in host memory.
  HostTensor(const at::Tensor& tensor)
      : storage_(tensor.storage()),
        data_(static_cast<std::byte*>(tensor.data_ptr())),
        elements_(tensor.numel()),
        element_bytes_(tensor.element_size()),
        type_(tensor.scalar_type()) {}

  std::byte* data() const { return data_; }
  std::int64_t elements() const { return elements_; }
  std::int64_t element_bytes() const { return element_bytes_; }
  std::int64_t bytes() const { return elements_ * element_bytes_; }
  at::ScalarType type() const { return type_; }

 private:
  c10::Storage storage_;
  std::byte* data_;
  std::int64_t elements_;
  std::int64_t element_bytes_;
  at::ScalarType type_;
};

// A chunk is a range of the call's elements.
class Transfer : public Task {
 public:
  // Bytes of payload for each element of the call.
  std::int64_t payload_bytes_per_element() const { return bytes_per_element_; }
  std::int64_t payload_bytes() const { return call().elements * bytes_per_element_; }

  // Whether there is no payload to publish, and nothing to combine.
  virtual bool empty() const { return call().elements == 0; }

  // Writes the chunk's payload to `payload`.
  virtual void copy_in(ElementRange chunk, std::byte* payload) = 0;
  // Called when all ranks' payloads are available. Reads them, and writes results to this rank's
  // tensor.
  virtual void combine(ElementRange chunk, std::span<std::byte* const> payloads) = 0;

  // Combines large payloads in two steps: each rank may write its share into all payloads.
  // Once every rank has done so, each copies the whole out of its own payload.
  virtual void combine_share(ElementRange chunk, std::span<std::byte* const> payloads) {
    combine(chunk, payloads);
  }
  virtual void copy_out(ElementRange, const std::byte*) {}

  // The payload where it already lies contiguously, for peers that can reach it there; else null.
  virtual const void* payload_in_place() const { return nullptr; }
  // Called when all ranks' payloads can be reached. Does this rank's share without chunks.
  virtual void combine_in_place(std::span<std::byte* const> payloads) {
    combine({0, call().elements}, payloads);
  }

 protected:
  Transfer(const Call& call, std::int64_t bytes_per_element)
      : Task(call), bytes_per_element_(bytes_per_element) {}

 private:
  std::int64_t bytes_per_element_;
};

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
// (exchange_sizes()); otherwise UsageError on every rank.
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
