// SPDX-License-Identifier: BSD-3-Clause
// The memory through which a rank talks to its peers. Each rank owns one block, and every rank sees
// all of them. Only the owner writes a block, except for the doorbell, a channel's count of taken
// fragments and, while ranks reduce, the staging chunks.
//
// Each group numbers its calls from 1. A call uses slot number % kSlots, which a rank may write
// once every rank has finished the slot's previous call.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <sched.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/core/task_engine.h"

namespace lockstep::local {

// The call that a rank was last seen waiting in, for the timeout messages of its peers. It lies in
// memory that starts as zeros. Its owner writes it, one thread at a time; any rank reads it.
class LastWait {
 public:
  void set(const Call& call) {
    const Words words = std::bit_cast<Words>(call);
    const std::uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Release stores: a reader that sees one of them also sees the odd version.
    for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // Empty if the rank has not waited yet, or is writing at the moment.
  std::optional<Call> get() const {
    const std::uint64_t version = version_.load(std::memory_order_acquire);
    Words words;
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    const bool whole = version % 2 == 0 && version_.load(std::memory_order_relaxed) == version;
    if (version == 0 || !whole) return std::nullopt;
    return std::bit_cast<Call>(words);
  }

 private:
  static constexpr std::size_t kWords = sizeof(Call) / sizeof(std::uint64_t);
  using Words = std::array<std::uint64_t, kWords>;

  std::atomic<std::uint64_t> version_;  // odd while the words are being written
  std::array<std::atomic<std::uint64_t>, kWords> words_;
};

constexpr std::size_t kCacheLine = 64;
// Lists of up to this many ranks need no heap memory.
constexpr unsigned kFewRanks = 8;
constexpr std::uint64_t kSlots = 32;
// Payloads up to this size travel next to the arrival flag.
constexpr std::int64_t kInlineBytes = 4096;
// Larger payloads go through chunks that stay in cache, two at a time.
constexpr std::int64_t kChunkBytes = 256 * 1024;
constexpr std::uint64_t kChunks = 2;

// Messages from one rank to another go through two fragments of this size.
constexpr std::int64_t kFragmentBytes = 32 * 1024;
constexpr std::uint64_t kFragments = 2;
constexpr int kTags = 3;

// An address in memory that every rank can reach; segment 0 means none.
struct Location {
  std::uint64_t segment = 0;
  std::int64_t offset = 0;
};

struct Arrival {
  Call call;
  Location location;  // of the call's tensor
};

struct alignas(kCacheLine) Slot {
  // The call's number, stored last.
  std::atomic<std::uint64_t> arrived;
  Arrival arrival;
  alignas(kCacheLine) std::byte payload[kInlineBytes];
};

// A part of a message, and the message's call.
struct Fragment {
  Call call;
  std::byte payload[kFragmentBytes];
};

// A channel from a block's owner to one peer. It counts the fragments of all messages.
struct Channel {
  alignas(kCacheLine) std::atomic<std::uint64_t> filled;
  alignas(kCacheLine) std::atomic<std::uint64_t> taken;  // written by the receiver
  Fragment fragments[kFragments];

  Fragment& fragment(std::uint64_t number) { return fragments[number % kFragments]; }
};

struct ControlBlock {
  // The last call that this rank has finished: it no longer reads or writes peers' memory for it.
  alignas(kCacheLine) std::atomic<std::uint64_t> finished;
  // The last chunks, counted over all calls, that this rank has copied in and combined.
  alignas(kCacheLine) std::atomic<std::uint64_t> chunk_staged;
  alignas(kCacheLine) std::atomic<std::uint64_t> chunk_combined;
  // A peer rings it after a change that this rank may be waiting for.
  alignas(kCacheLine) Doorbell doorbell;
  alignas(kCacheLine) std::atomic<AbortCause> abort_cause;
  // Like the reason, written before the cause, or before a farewell during an exception.
  std::int32_t lost_rank;
  std::int32_t culprit;  // the job rank at fault; -1 if unknown
  char abort_reason[1024];
  LastWait last_wait;
  // Where this rank may run. Written before any peer maps the block.
  cpu_set_t cores;

  Slot slots[kSlots];
  alignas(4096) std::byte chunks[kChunks][kChunkBytes];

  Slot& slot(std::uint64_t number) { return slots[number % kSlots]; }
  // The channels lie behind the block, kTags for each rank.
  Channel& channel(int to, Tag tag) {
    return reinterpret_cast<Channel*>(this + 1)[to * kTags + static_cast<int>(tag)];
  }

  static std::size_t bytes(int ranks) {
    return sizeof(ControlBlock) + static_cast<std::size_t>(ranks) * kTags * sizeof(Channel);
  }
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(Arrival) + sizeof(std::uint64_t) <= kCacheLine,
              "a peer reads arrival and call in one cache line");

}  // namespace lockstep::local
