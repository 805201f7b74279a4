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
  // Watches nothing either if there is no such process among those that this one can see.
  explicit ProcessWatch(pid_t pid);

  // Whether the process is known to have ended. Waits at most this long for its end, since a
  // process's connections close a moment before it is gone.
  bool has_ended(std::chrono::milliseconds at_most) const;

 private:
  UniqueFd pidfd_;
};

}  // namespace lockstep
