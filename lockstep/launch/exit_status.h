// SPDX-License-Identifier: BSD-3-Clause
// How a process ended, as numbers and as text, and whether the kernel killed it for lack of memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <signal.h>

#include "lockstep/core/process/cgroup.h"

namespace lockstep {

class MemoryKills;

struct ExitStatus {
  // The signal that killed it, or 0.
  int signal = 0;
  // The argument of exit(), unless a signal killed it.
  int exit_code = 0;

  // From waitid()'s si_code and si_status.
  static ExitStatus from(int code, int status);

  bool success() const { return signal == 0 && exit_code == 0; }
  // As a shell reports it: 128 + signal, or the exit code.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
  // "exit code 3", "killed by signal 11 (SIGSEGV), an invalid memory access"; for SIGKILL, its
  // likely sender.
  std::string words(const MemoryKills& kills) const;
};

// Whether the exit code says that the command is wrong, so that it would end so again: wrong usage,
// a program that cannot be executed, or one that does not exist.
bool wrong_command(int exit_code);

// "signal 9 (SIGKILL)"
std::string signal_words(int signal);

// Distinguishes SIGKILLs of the kernel's out-of-memory killer from all others: follows the count of
// such kills in this process's control group. Ranks that move to a group outside it are not
// counted.
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
  // since construction, the text says that it was another sender. Otherwise, or if no control group
  // counts kills, it names both possibilities.
  std::string words() const;
  // For a process whose exit status is unknown: "killed by the kernel: ...". Empty if the kernel
  // has killed nothing in the last kTimeToEnd, or no control group counts.
  std::string recent_kill_words() const;

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
