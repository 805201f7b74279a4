// SPDX-License-Identifier: BSD-3-Clause
// Tells whether another process of this machine has ended.
#pragma once

#include <chrono>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

class ProcessWatch {
 public:
  // Watches nothing.
  ProcessWatch() = default;
  // Watches nothing if no process with this id is visible here.
  explicit ProcessWatch(pid_t pid);

  // Whether the process is known to have ended. Waits up to `at_most` for its end, since a
  // process's connections close a moment before it is gone.
  bool has_ended(std::chrono::milliseconds at_most) const;

 private:
  UniqueFd pidfd_;
};

}  // namespace lockstep
