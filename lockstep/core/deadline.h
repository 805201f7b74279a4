// SPDX-License-Identifier: BSD-3-Clause
// Public. The time by which a wait must end. Every wait takes one.
#pragma once

#include <algorithm>
#include <chrono>

namespace lockstep {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds span) { return Deadline(span); }

  bool passed(Clock::time_point now = Clock::now()) const { return now >= end_; }
  // The time left, rounded up so that a poll() with it does not return early. Never negative, and
  // at most a day, so that its milliseconds fit into an int.
  std::chrono::milliseconds remaining() const {
    return std::clamp<std::chrono::milliseconds>(
        std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()),
        std::chrono::milliseconds(0), std::chrono::hours(24));
  }
  // The span that the deadline was made with, for messages.
  std::chrono::milliseconds span() const { return span_; }
  // Extends the same wait: the new deadline ends `more` from now, and its span counts from where
  // this one began.
  Deadline prolonged(std::chrono::milliseconds more) const {
    Deadline longer = after(more);
    if (end_ != Clock::time_point::max()) {
      longer.span_ = std::chrono::floor<std::chrono::milliseconds>(longer.end_ - (end_ - span_));
    }
    return longer;
  }

 private:
  explicit Deadline(std::chrono::milliseconds span) : span_(span) {
    // A span such as milliseconds::max() is beyond the end of the clock.
    const auto now = Clock::now();
    const bool fits =
        span < std::chrono::floor<std::chrono::milliseconds>(Clock::time_point::max() - now);
    end_ = fits ? now + span : Clock::time_point::max();
  }

  std::chrono::milliseconds span_;
  Clock::time_point end_;
};

}  // namespace lockstep
