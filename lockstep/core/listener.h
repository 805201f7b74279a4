// SPDX-License-Identifier: BSD-3-Clause
// Takes new connections without blocking, for an event loop.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "lockstep/core/epoll.h"
#include "lockstep/core/fork_safe_fd.h"

namespace lockstep {

class Listener {
 public:
  // Takes a non-blocking listening socket. BackendError if it cannot be watched.
  explicit Listener(UniqueFd socket);

  // To be polled for POLLIN.
  int descriptor() const { return epoll_.get(); }

  // The connections that have come, a few at a time. When this process runs out of descriptors,
  // they stay in the kernel's queue, and descriptor() does not become readable for them until the
  // next call: see starved().
  std::vector<UniqueFd> accept();

  // Whether the last accept() left connections in the queue for want of descriptors.
  bool starved() const { return !watched_; }
  // The limit on descriptors that keeps connections in the queue, in words; empty if none does.
  std::string limit_met() const;

  // Takes no more, and frees the address.
  void close();

 private:
  void watch(bool on);

  ForkSafeFd socket_;
  Epoll epoll_;
  bool watched_ = false;
  std::atomic<int> error_ = 0;
};

}  // namespace lockstep
