// SPDX-License-Identifier: BSD-3-Clause
// Polls a pidfd for the end of a process.
#include "lockstep/core/process/process_watch.h"

#include <cerrno>

#include <poll.h>
#include <sys/syscall.h>

#include "lockstep/core/deadline.h"

namespace lockstep {

ProcessWatch::ProcessWatch(pid_t pid)
    : pidfd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

bool ProcessWatch::has_ended(std::chrono::milliseconds at_most) const {
  if (!pidfd_) return false;
  const Deadline deadline = Deadline::after(at_most);
  while (true) {
    pollfd entry{pidfd_.get(), POLLIN, 0};
    const int ready = ::poll(&entry, 1, static_cast<int>(deadline.remaining().count()));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

}  // namespace lockstep
