// SPDX-License-Identifier: BSD-3-Clause
// For event loops over sockets: the set of descriptors that a loop watches, and a listener that
// accepts without blocking.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// A set of descriptors, in the kernel's epoll.
class Epoll {
 public:
  // BackendError if the kernel refuses another one.
  Epoll();

  // Can be polled: POLLIN when a watched descriptor has an event.
  int get() const { return fd_.get(); }

  // BackendError if it cannot be watched.
  void add(int fd, std::uint32_t events);
  // Like add(), but returns false instead of throwing.
  bool try_add(int fd, std::uint32_t events);
  void change(int fd, std::uint32_t events);
  void remove(int fd);

  // The descriptors that have an event now, at most 64 per call. Does not block.
  std::vector<int> ready() const;

  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

// A listening socket.
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
