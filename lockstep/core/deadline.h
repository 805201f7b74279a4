// SPDX-License-Identifier: BSD-3-Clause
// The point in time until which a wait may last. There is no way to wait without one.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds span) { return Deadline(span); }

  bool passed() const { return Clock::now() >= end_; }
  // What is left, never negative; rounded up, so that a poll() of it does not return early.
  std::chrono::milliseconds remaining() const {
    return std::max(std::chrono::milliseconds(0),
                    std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()));
  }
  // The span that the deadline was made with, for messages.
  std::chrono::milliseconds span() const { return span_; }

 private:
  explicit Deadline(std::chrono::milliseconds span) : span_(span), end_(Clock::now() + span) {}

  std::chrono::milliseconds span_;
  Clock::time_point end_;
};

}  // namespace lockstep
