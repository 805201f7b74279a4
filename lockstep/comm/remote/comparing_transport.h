// SPDX-License-Identifier: BSD-3-Clause
// A transport made of messages, over which ranks compare their calls
// (docs/decisions/0021-calls-are-compared-between-machines.md). The first stage of a call tells
// every rank what the others call (compared_exchange.h), so no result is used before all calls are
// known to match. Blocks that travel separately have a tag that is a digest of the call, so blocks
// of different calls do not match.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/remote/compared_exchange.h"
#include "lockstep/comm/remote/messenger.h"
#include "lockstep/comm/remote/transport.h"

namespace lockstep::remote {

class ComparingTransport final : public Transport {
 public:
  ComparingTransport(std::unique_ptr<Messenger> messenger, int rank, int size);

  std::unique_ptr<Transmission> exchange(at::Tensor outgoing,
                                         std::vector<std::int64_t> outgoing_bytes,
                                         at::Tensor incoming,
                                         std::vector<std::int64_t> incoming_bytes) override;
  std::unique_ptr<Transmission> all_gather(at::Tensor own, at::Tensor all,
                                           std::vector<std::int64_t> bytes) override;
  // Must not be the first stage of a call: the library does not compare.
  std::unique_ptr<Transmission> broadcast(at::Tensor bytes, int root) override;
  std::unique_ptr<Transmission> send(at::Tensor bytes, int to, int tag) override;
  std::unique_ptr<Transmission> receive(at::Tensor bytes, int from, int tag) override;

  void begin_stage(const Call& call, std::size_t stage,
                   std::span<const std::int64_t> sizes) override;
  bool compares_calls() const override { return true; }

  std::int64_t chunk_bytes_between_machines() const override;
  std::uint64_t events() const override;
  void wait_for_event(std::uint64_t events, std::chrono::microseconds at_most) override;

 private:
  std::unique_ptr<Transmission> exchange(Blocks blocks);
  std::unique_ptr<Transmission> exchange_heads(const std::shared_ptr<Blocks>& blocks);
  // Exchanges the blocks that the function chooses.
  template <class Function>
  std::unique_ptr<Transmission> exchange_blocks(const std::shared_ptr<Blocks>& blocks,
                                                const Function& chooses);

  std::unique_ptr<Messenger> messenger_;
  const int rank_;
  const int size_;
  Call call_;
  std::size_t stage_ = 0;
  std::vector<std::int64_t> sizes_;
  HeadMemory memory_;
};

}  // namespace lockstep::remote
