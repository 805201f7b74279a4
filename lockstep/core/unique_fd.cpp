// SPDX-License-Identifier: BSD-3-Clause
// Lists this process's fork-safe descriptors, and redirects them in a forked child.
#include "lockstep/core/unique_fd.h"

#include <mutex>
#include <set>

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>

namespace lockstep {
namespace {

// This process's fork-safe descriptors. Locked during a fork, so that the child's copy is
// consistent.
struct List {
  std::mutex mutex;
  std::set<int> fds;
};

// Never destroyed: groups may live in static objects.
List& list() {
  static List& list = *new List;
  return list;
}

void redirect_in_child() {
  const std::set<int>& fds = list().fds;
  if (fds.empty()) return list().mutex.unlock();
  // The child may have no /dev/null, and no free descriptor but the one closed here.
  ::close(*fds.begin());
  const int nowhere = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  for (const int fd : fds) {
    if (fd != nowhere) ::dup3(nowhere, fd, O_CLOEXEC);
  }
  if (!fds.contains(nowhere)) ::close(nowhere);
  list().fds.clear();
  list().mutex.unlock();
}

void watch_forks() {
  static const int once = ::pthread_atfork([] { list().mutex.lock(); },
                                           [] { list().mutex.unlock(); }, redirect_in_child);
  static_cast<void>(once);
}

}  // namespace

ForkSafeFd::ForkSafeFd(UniqueFd fd) : fd_(std::move(fd)) {
  if (!fd_) return;
  watch_forks();
  const std::lock_guard lock(list().mutex);
  list().fds.insert(fd_.get());
}

ForkSafeFd& ForkSafeFd::operator=(ForkSafeFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = std::move(other.fd_);
  }
  return *this;
}

ForkSafeFd::~ForkSafeFd() {
  reset();
}

void ForkSafeFd::reset() {
  if (!fd_) return;
  const std::lock_guard lock(list().mutex);
  list().fds.erase(fd_.get());
  fd_.reset();
}

}  // namespace lockstep
