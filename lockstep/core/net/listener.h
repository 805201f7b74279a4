// SPDX-License-Identifier: BSD-3-Clause
// Accepts connections without blocking, for an event loop.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "lockstep/core/file/fork_safe_fd.h"
#include "lockstep/core/net/epoll.h"

namespace lockstep {

class Listener {
 public:
  // Takes a non-blocking listening socket. BackendError if it cannot be watched.
  explicit Listener(UniqueFd socket);

  // Poll it for POLLIN.
  int descriptor() const { return epoll_.get(); }

  // Accepts connections that have arrived, at most 32 per call. If this process runs out of
  // descriptors, they stay in the kernel's queue, and descriptor() does not become readable for
  // them until the next call: see starved().
  std::vector<UniqueFd> accept();

  // Whether the last accept() left connections in the queue for lack of descriptors.
  bool starved() const { return !watched_; }
  // The descriptor limit that keeps connections in the queue, as text for messages; empty if none
  // does.
  std::string limit_met() const;

  // Stops listening and frees the address.
  void close();

 private:
  void watch(bool on);

  ForkSafeFd socket_;
  Epoll epoll_;
  bool watched_ = false;
  std::atomic<int> error_ = 0;
};

}  // namespace lockstep
