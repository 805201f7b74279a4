// SPDX-License-Identifier: BSD-3-Clause
// The first exchange of a call, in which ranks compare their calls. A rank sends each peer one
// message:
//   the call | for an all_to_all, the sizes that it sends and expects | the block, if it is short
// The peer has room for the longest such message, whatever either rank calls. Longer blocks are
// messages of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/remote/transport.h"

namespace lockstep::remote {

// The bytes that go to one rank, or come from it.
struct Block {
  std::byte* data;
  std::int64_t bytes;
};
struct Blocks {
  std::vector<Block> outgoing;
  std::vector<Block> incoming;
  std::vector<at::Tensor> tensors;  // own the blocks' memory
};

// Memory for the messages of one call, reused when it is free again.
class HeadMemory {
 public:
  explicit HeadMemory(int ranks);

  // Whether the block is so short that copying it behind the head is faster than sending it
  // separately.
  bool is_short(const Block& block) const { return block.bytes <= short_bytes_; }
  std::int64_t slot_bytes() const { return slot_bytes_; }

  // Returns a slot for each rank's incoming message, then a slot for each outgoing one.
  std::shared_ptr<std::byte[]> get();

 private:
  const int ranks_;
  const std::int64_t short_bytes_;
  const std::int64_t slot_bytes_;
  std::vector<std::shared_ptr<std::byte[]>> kept_;
};

// Done when the blocks have arrived. Throws before any block is used: CallsDiffer if a peer made a
// different call, UsageError if the sizes of an all_to_all do not match.
class ComparedExchange final : public Transmission {
 public:
  // `sizes`: the exchange_sizes() of an all_to_all, else empty.
  ComparedExchange(const Call& call, int rank, std::vector<std::int64_t> sizes,
                   std::shared_ptr<Blocks> blocks, HeadMemory& memory);

  // The memory in which the peer's message arrives.
  std::byte* slot(int peer) const { return memory_.get() + peer * slot_bytes_; }
  // Writes the message for a peer; returns its address and its size in bytes.
  std::pair<std::byte*, std::int64_t> write(int peer, bool with_block);
  const std::shared_ptr<std::byte[]>& memory() const { return memory_; }

  // Takes the transmissions of the messages and of the long blocks; null if there are none.
  void start(std::unique_ptr<Transmission> heads, std::unique_ptr<Transmission> long_blocks);
  bool done() override;

 private:
  int size() const { return static_cast<int>(blocks_->incoming.size()); }
  std::size_t sizes_bytes() const { return sizes_.size() * sizeof(std::int64_t); }
  void compare() const;
  void compare_sizes() const;
  void take_short_blocks() const;

  const Call call_;
  const int rank_;
  const std::vector<std::int64_t> sizes_;
  const std::shared_ptr<Blocks> blocks_;
  const std::int64_t slot_bytes_;
  const std::shared_ptr<std::byte[]> memory_;
  std::vector<bool> is_short_;  // each rank's incoming block
  std::unique_ptr<Transmission> heads_;
  std::unique_ptr<Transmission> long_blocks_;
};

}  // namespace lockstep::remote
