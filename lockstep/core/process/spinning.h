// SPDX-License-Identifier: BSD-3-Clause
// Waiting without sleep: a lock that spins on a flag, and a hint for other loops that wait.
#pragma once

#include <atomic>
#include <mutex>

#include <sched.h>

namespace lockstep {

// For loops that wait for another core's store: leaves the core's resources to its other hardware
// thread for a moment.
inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A lock on a flag, held while this object lives.
class SpinGuard {
 public:
  explicit SpinGuard(std::atomic_flag& flag) : flag_(flag) {
    while (flag_.test_and_set(std::memory_order_acquire)) ::sched_yield();
  }
  // For progress, which may be re-entered: does not wait; holds() tells whether it got the flag.
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
