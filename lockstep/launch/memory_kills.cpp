// SPDX-License-Identifier: BSD-3-Clause
// Compares the control group's kill counts, and puts the cause of a SIGKILL in words.
#include "lockstep/launch/memory_kills.h"

#include <fmt/format.h>
#include <signal.h>

#include "lockstep/launch/exit_status.h"

namespace lockstep {

MemoryKills::MemoryKills(const std::filesystem::path& root)
    : cgroup_(root), limit_hits_(cgroup_.memory_limit_hits()), seen_(cgroup_.memory_kills()) {}

void MemoryKills::look() {
  if (!seen_ || count() == *seen_) return;
  seen_ = count();
  risen_ = Clock::now();
}

std::string MemoryKills::words() const {
  const std::string signal = "killed by " + signal_words(SIGKILL);
  const std::string by_kernel = words_of_late();
  if (!by_kernel.empty()) return by_kernel;
  if (!seen_ || risen_) return signal + ", likely out of memory or kill -9";
  return signal + ", by kill -9 or the like: its control group did not run out of memory";
}

std::string MemoryKills::words_of_late() const {
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
