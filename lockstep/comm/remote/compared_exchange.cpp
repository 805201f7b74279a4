// SPDX-License-Identifier: BSD-3-Clause
// Writes the first messages of a call, and compares those that arrive.
#include "lockstep/comm/remote/compared_exchange.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/collective_args.h"
#include "lockstep/comm/remote/schedules.h"

namespace lockstep::remote {
namespace {

// Bytes for short blocks in one call, divided among its peers.
constexpr std::int64_t kShortBytesOfAll = 128 * 1024;
// Memory is kept for this many calls under way at once.
constexpr std::size_t kMostKept = 8;
constexpr auto kCallBytes = static_cast<std::int64_t>(sizeof(Call));

}  // namespace

HeadMemory::HeadMemory(int ranks)
    : ranks_(ranks),
      short_bytes_(std::max(kSmallBytes, kShortBytesOfAll / std::max(1, ranks - 1))),
      slot_bytes_(kCallBytes + 2 * ranks * static_cast<std::int64_t>(sizeof(std::int64_t)) +
                  short_bytes_) {}

std::shared_ptr<std::byte[]> HeadMemory::get() {
  for (const auto& memory : kept_) {
    // Only this list still holds the memory, so the count cannot rise meanwhile. Copying the
    // pointer also makes the last user's accesses visible, since libstdc++ counts with acquire and
    // release.
    if (memory.use_count() == 1) return memory;
  }
  auto memory = std::make_shared_for_overwrite<std::byte[]>(
      static_cast<std::size_t>(2 * ranks_ * slot_bytes_));
  if (kept_.size() < kMostKept) kept_.push_back(memory);
  return memory;
}

ComparedExchange::ComparedExchange(const Call& call, int rank, std::vector<std::int64_t> sizes,
                                   std::shared_ptr<Blocks> blocks, HeadMemory& memory)
    : call_(call),
      rank_(rank),
      sizes_(std::move(sizes)),
      blocks_(std::move(blocks)),
      slot_bytes_(memory.slot_bytes()),
      memory_(memory.get()) {
  for (const Block& block : blocks_->incoming) is_short_.push_back(memory.is_short(block));
}

std::pair<std::byte*, std::int64_t> ComparedExchange::write(int peer, bool with_block) {
  const Block& block = blocks_->outgoing[static_cast<std::size_t>(peer)];
  std::byte* const begin = slot(size() + peer);
  std::byte* end = begin;
  const auto append = [&end](const void* data, std::size_t bytes) {
    if (bytes > 0) std::memcpy(end, data, bytes);
    end += bytes;
  };
  append(&call_, sizeof call_);
  append(sizes_.data(), sizes_bytes());
  if (with_block) append(block.data, static_cast<std::size_t>(block.bytes));
  return {begin, end - begin};
}

void ComparedExchange::start(std::unique_ptr<Transmission> heads,
                             std::unique_ptr<Transmission> long_blocks) {
  heads_ = std::move(heads);
  long_blocks_ = std::move(long_blocks);
}

bool ComparedExchange::done() {
  if (heads_) {
    if (!heads_->done()) return false;
    compare();
    take_short_blocks();
    heads_.reset();
  }
  return !long_blocks_ || long_blocks_->done();
}

void ComparedExchange::compare() const {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    Call theirs;
    std::memcpy(&theirs, slot(peer), sizeof theirs);
    if (theirs == call_) continue;
    throw CallsDiffer({}, call_, peer, fmt::format("rank {}", peer), theirs);
  }
  if (!sizes_.empty()) compare_sizes();
}

void ComparedExchange::compare_sizes() const {
  std::vector<std::vector<std::int64_t>> sizes(static_cast<std::size_t>(size()), sizes_);
  std::vector<const std::int64_t*> of_ranks;
  for (int rank = 0; rank < size(); ++rank) {
    auto& of_rank = sizes[static_cast<std::size_t>(rank)];
    if (rank != rank_) std::memcpy(of_rank.data(), slot(rank) + kCallBytes, sizes_bytes());
    of_ranks.push_back(of_rank.data());
  }
  const std::string fault = exchange_fault(of_ranks);
  if (!fault.empty()) throw UsageError(fault);
}

void ComparedExchange::take_short_blocks() const {
  for (int peer = 0; peer < size(); ++peer) {
    const Block& block = blocks_->incoming[static_cast<std::size_t>(peer)];
    if (peer == rank_ || block.bytes == 0 || !is_short_[static_cast<std::size_t>(peer)]) continue;
    std::memcpy(block.data, slot(peer) + kCallBytes + sizes_bytes(),
                static_cast<std::size_t>(block.bytes));
  }
}

}  // namespace lockstep::remote
