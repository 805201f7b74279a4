// SPDX-License-Identifier: BSD-3-Clause
// Processes that ranks started and left behind.
#pragma once

#include <chrono>
#include <set>

#include <sys/types.h>

namespace lockstep {

// While it lives, processes whose parents end become children of this process, whatever group or
// session they moved to (Linux's "child subreaper").
class AdoptsOrphans {
 public:
  AdoptsOrphans();
  ~AdoptsOrphans();
  AdoptsOrphans(const AdoptsOrphans&) = delete;
  AdoptsOrphans& operator=(const AdoptsOrphans&) = delete;

 private:
  int before_ = 0;
};

// Whether this process can list its children, which takes /proc.
bool children_can_be_seen();

// What a killed process may take to end; one that does not hangs in the kernel.
constexpr std::chrono::seconds kill_patience{2};

// Ends all children of this process that adopts, and theirs: SIGTERM, after the grace SIGKILL.
// Gives up on what survives that for kill_patience. None if they cannot be seen.
void end_children(std::chrono::milliseconds grace);

// Takes notice of the children that have ended, but for those excepted.
void reap_children(const std::set<pid_t>& except);

}  // namespace lockstep
