// SPDX-License-Identifier: BSD-3-Clause
// Tells the kernel's out-of-memory killer from everybody else who sends SIGKILL.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/core/cgroup.h"

namespace lockstep {

// Follows the count of such kills in this process's control group. Ranks that move to a group
// outside it are not counted.
class MemoryKills {
 public:
  // How long a process that the kernel kills takes to end, at most: its memory is freed first.
  static constexpr std::chrono::milliseconds kTimeToEnd = std::chrono::seconds(2);

  // Counts from now on. Reads the files of control groups below `root`.
  explicit MemoryKills(const std::filesystem::path& root = "/");

  // Notices new kills. Call it at least as often as every kTimeToEnd: later it cannot be said when
  // the kernel killed.
  void look();

  // The cause of a SIGKILL just seen, in words: "killed by the kernel: out of memory, the control
  // group's limit is 512 MiB", if the kernel killed in the last kTimeToEnd; somebody else, if it
  // has killed none since construction; otherwise, or without a control group that counts, both
  // guesses.
  std::string words() const;
  // For a process whose end is not known: "killed by the kernel: ...", or empty if the kernel has
  // killed none in the last kTimeToEnd, or no control group counts.
  std::string words_of_late() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t count() const { return cgroup_.memory_kills().value_or(seen_.value_or(0)); }

  Cgroup cgroup_;
  // At construction: a kill while no limit was met is for the whole machine's lack of memory.
  std::optional<std::int64_t> limit_hits_;
  // The count at the last look.
  std::optional<std::int64_t> seen_;
  // When a look found a higher count than the one before.
  std::optional<Clock::time_point> risen_{};
};

}  // namespace lockstep
