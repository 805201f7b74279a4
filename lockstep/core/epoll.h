// SPDX-License-Identifier: BSD-3-Clause
// The kernel's list of descriptors to watch.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

class Epoll {
 public:
  // BackendError if there can be no more.
  Epoll();

  // Of poll(): POLLIN when one of those that are watched has something.
  int get() const { return fd_.get(); }

  // BackendError if it cannot be watched.
  void add(int fd, std::uint32_t events);
  // False then.
  bool try_add(int fd, std::uint32_t events);
  void change(int fd, std::uint32_t events);
  void remove(int fd);

  // Those that have something now, as many as one call tells; does not wait.
  std::vector<int> ready() const;

  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
};

}  // namespace lockstep
