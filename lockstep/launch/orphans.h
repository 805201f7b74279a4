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

// Ends all children of this process but those excepted, and theirs: SIGTERM, after the grace
// SIGKILL. Gives up on what survives that for two seconds. None if they cannot be seen.
void end_orphans(const std::set<pid_t>& except, std::chrono::milliseconds grace);

}  // namespace lockstep
