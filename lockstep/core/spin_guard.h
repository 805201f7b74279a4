// SPDX-License-Identifier: BSD-3-Clause
// RAII spin lock on a flag. Progress, which may be re-entered, tests the flag itself and skips if
// it is held.
#pragma once

#include <atomic>

#include <sched.h>

namespace lockstep {

class SpinGuard {
 public:
  explicit SpinGuard(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) ::sched_yield();
  }
  ~SpinGuard() { flag_.clear(std::memory_order_release); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  std::atomic_flag& flag_;
};

}  // namespace lockstep
