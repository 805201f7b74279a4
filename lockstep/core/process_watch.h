// SPDX-License-Identifier: BSD-3-Clause
// Another process of this machine, by its id: whether it has ended.
#pragma once

#include <chrono>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

class ProcessWatch {
 public:
  // Watches nothing.
  ProcessWatch() = default;
  // Nothing either if there is no such process, or it lives in a PID namespace that is not seen
  // here.
  explicit ProcessWatch(pid_t pid);

  // Whether it is known to have ended. Waits for its end at most so long, since a process's
  // connections close a moment before it is gone.
  bool has_ended(std::chrono::milliseconds at_most) const;

 private:
  UniqueFd pidfd_;
};

}  // namespace lockstep
