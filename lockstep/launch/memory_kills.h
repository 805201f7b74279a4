// SPDX-License-Identifier: BSD-3-Clause
// Distinguishes SIGKILLs of the kernel's out-of-memory killer from all others.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/core/process/cgroup.h"

namespace lockstep {

// Follows the count of out-of-memory kills in this process's control group. Ranks that move to a
// group outside it are not counted.
class MemoryKills {
 public:
  // The longest time that a killed process takes to end, since its memory is freed first.
  static constexpr std::chrono::milliseconds kTimeToEnd = std::chrono::seconds(2);

  // Counts from construction. Reads the control groups' files below `root`.
  explicit MemoryKills(const std::filesystem::path& root = "/");

  // Notices new kills. Call it at least once per kTimeToEnd: otherwise the time of a kill is
  // unknown.
  void look();

  // The cause of a SIGKILL just seen, as text. If the kernel killed in the last kTimeToEnd: "killed
  // by the kernel: out of memory, the control group's limit is 512 MiB". If it has killed nothing
  // since construction: somebody else. Otherwise, or if no control group counts kills: both
  // possibilities.
  std::string words() const;
  // For a process whose exit status is unknown: "killed by the kernel: ...". Empty if the kernel
  // has killed nothing in the last kTimeToEnd, or no control group counts.
  std::string words_of_late() const;

 private:
  using Clock = std::chrono::steady_clock;

  std::int64_t count() const { return cgroup_.memory_kills().value_or(seen_.value_or(0)); }

  Cgroup cgroup_;
  // The limit hits at construction. A kill without a new hit means that the whole machine lacked
  // memory.
  std::optional<std::int64_t> limit_hits_;
  // The count at the last look.
  std::optional<std::int64_t> seen_;
  // When a look last found a higher count.
  std::optional<Clock::time_point> risen_{};
};

}  // namespace lockstep
