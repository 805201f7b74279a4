// SPDX-License-Identifier: BSD-3-Clause
// RAII spin lock on a flag.
#pragma once

#include <atomic>
#include <mutex>

#include <sched.h>

namespace lockstep {

class SpinGuard {
 public:
  explicit SpinGuard(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) ::sched_yield();
  }
  // For progress, which may be re-entered: does not wait, but may hold nothing.
  SpinGuard(std::atomic_flag& flag, std::try_to_lock_t /*try*/)
      : flag_(flag), holds_(!flag.test_and_set(std::memory_order_acquire)) {}
  ~SpinGuard() {
    if (holds_) flag_.clear(std::memory_order_release);
  }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

  bool holds() const { return holds_; }

 private:
  std::atomic_flag& flag_;
  const bool holds_ = true;
};

}  // namespace lockstep
