// SPDX-License-Identifier: BSD-3-Clause
// Adopts and ends processes that ranks started and left behind.
#pragma once

#include <chrono>
#include <set>

#include <sys/types.h>

namespace lockstep {

// While this object lives, processes whose parents end become children of this process, whatever
// group or session they moved to (Linux's "child subreaper").
class AdoptsOrphans {
 public:
  AdoptsOrphans();
  ~AdoptsOrphans();
  AdoptsOrphans(const AdoptsOrphans&) = delete;
  AdoptsOrphans& operator=(const AdoptsOrphans&) = delete;

 private:
  int before_ = 0;
};

// Whether this process can list its children, which needs /proc.
bool children_can_be_seen();

// How long a killed process may take to end; one that takes longer hangs in the kernel.
constexpr std::chrono::seconds kKillTimeout{2};

// For a process that adopts orphans: ends all its descendants with SIGTERM, and with SIGKILL after
// the grace. Gives up on processes that survive SIGKILL for kKillTimeout. Does nothing if it
// cannot list its children.
void end_children(std::chrono::milliseconds grace);

// Reaps the children that have ended, except these.
void reap_children(const std::set<pid_t>& except);

}  // namespace lockstep
