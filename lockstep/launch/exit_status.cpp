// SPDX-License-Identifier: BSD-3-Clause
// Describes exit codes and signals with their likely causes, and compares counts of kills.
#include "lockstep/launch/exit_status.h"

#include <fmt/format.h>
#include <string.h>

namespace lockstep {
namespace {

const char* likely_cause(int signal) {
  switch (signal) {
    case SIGSEGV:
      return ", an invalid memory access";
    case SIGABRT:
      return ", likely an uncaught exception or a failed assertion";
    case SIGBUS:
      return ", likely a mapped file or shared memory that ran out of space";
    case SIGFPE:
      return ", likely an integer division by zero";
    case SIGILL:
      return ", likely built for another processor";
    default:
      return "";
  }
}

}  // namespace

ExitStatus ExitStatus::from(int code, int status) {
  ExitStatus end;
  (code == CLD_EXITED ? end.exit_code : end.signal) = status;
  return end;
}

std::string ExitStatus::words(const MemoryKills& kills) const {
  if (signal == 0) return fmt::format("exit code {}", exit_code);
  if (signal == SIGKILL) return kills.words();
  return fmt::format("killed by {}{}", signal_words(signal), likely_cause(signal));
}

bool wrong_command(int exit_code) {
  return exit_code == 2 || exit_code == 126 || exit_code == 127;
}

std::string signal_words(int signal) {
  const char* name = ::sigabbrev_np(signal);
  if (name == nullptr) return fmt::format("signal {}", signal);
  return fmt::format("signal {} (SIG{})", signal, name);
}

MemoryKills::MemoryKills(const std::filesystem::path& root)
    : cgroup_(root), limit_hits_(cgroup_.memory_limit_hits()), seen_(cgroup_.memory_kills()) {}

void MemoryKills::look() {
  if (!seen_ || count() == *seen_) return;
  seen_ = count();
  risen_ = Clock::now();
}

std::string MemoryKills::words() const {
  const std::string signal = "killed by " + signal_words(SIGKILL);
  const std::string by_kernel = recent_kill_words();
  if (!by_kernel.empty()) return by_kernel;
  if (!seen_ || risen_) return signal + ", likely out of memory or kill -9";
  return signal + ", by kill -9 or the like: its control group did not run out of memory";
}

std::string MemoryKills::recent_kill_words() const {
  // The kernel counts before it kills.
  const bool now = seen_ && count() != *seen_;
  const bool just = risen_ && Clock::now() - *risen_ < kTimeToEnd;
  if (!now && !just) return "";
  const auto limit = cgroup_.memory_limit();
  const auto hits = cgroup_.memory_limit_hits();
  if (!limit || (hits && hits == limit_hits_)) {
    return "killed by the kernel: the machine is out of memory";
  }
  return fmt::format("killed by the kernel: out of memory, the control group's limit is {} MiB",
                     *limit >> 20);
}

}  // namespace lockstep
