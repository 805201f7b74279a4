// SPDX-License-Identifier: BSD-3-Clause
// The descriptors that an event loop watches, in the kernel's epoll.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

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

}  // namespace lockstep
