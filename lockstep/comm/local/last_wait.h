// SPDX-License-Identifier: BSD-3-Clause
// The call that a rank was last seen waiting in, for the timeout messages of its peers. It lies in
// memory that starts as zeros. Its owner writes it, one thread at a time; any rank reads it.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "lockstep/comm/core/call.h"

namespace lockstep::local {

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

}  // namespace lockstep::local
