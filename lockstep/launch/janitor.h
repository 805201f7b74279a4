// SPDX-License-Identifier: BSD-3-Clause
// A process that tidies up when the launcher is killed and cannot do so itself.
#pragma once

#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Lives in a session of its own, deaf to signals, and waits at a pipe that closes when the launcher
// is gone. Then it kills the process groups of all ranks and removes the store's folder. Made
// before the first rank.
class Janitor {
 public:
  // At most so many ranks will be added.
  Janitor(int ranks, const std::string& store_socket, const std::string& store_folder);
  // Sends it away; it removes nothing. Waits until it is gone.
  ~Janitor();
  Janitor(const Janitor&) = delete;
  Janitor& operator=(const Janitor&) = delete;

  pid_t pid() const { return pid_; }
  // The process group of a rank. A rank calls it for itself before it can have children.
  void add(pid_t group);
  // In a forked child: lets go of the pipe, which otherwise would seem held by the launcher.
  void leave_to_parent();

 private:
  pid_t pid_ = -1;
  UniqueFd pipe_;
};

}  // namespace lockstep
