// SPDX-License-Identifier: BSD-3-Clause
// RAII spin lock, for places that progress may re-enter and must then skip.
#pragma once

#include <atomic>

#include <sched.h>

namespace lockstep {

class Hold {
 public:
  explicit Hold(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) ::sched_yield();
  }
  ~Hold() { flag_.clear(std::memory_order_release); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  std::atomic_flag& flag_;
};

}  // namespace lockstep
