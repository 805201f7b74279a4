// SPDX-License-Identifier: BSD-3-Clause
// The deadlines of one launch. They stop running while the job is suspended.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

#include "lockstep/core/deadline.h"

namespace lockstep {

enum class JobDeadline : std::size_t {
  // Each rank must have arrived (AgentOptions::arrival).
  arrival,
  // The launcher decides which rank has failed first.
  decision,
  // Ranks that were told to stop are killed.
  kill,
  // Killed ranks must have ended.
  kill_effect,
  // A further signal to stop counts as a request of its own, no longer as a repetition.
  repeated_signal,
  // The reader of the launcher's output must have taken the rest, which is then dropped.
  output,
};

class JobDeadlines {
 public:
  // Replaces a deadline that is set.
  void set(JobDeadline which, std::chrono::milliseconds span) {
    entry(which).at = Deadline::after(span);
  }
  // Sets the deadline unless it already is earlier.
  void set_earlier(JobDeadline which, std::chrono::milliseconds span) {
    if (!is_set(which) || span < remaining(which)) set(which, span);
  }
  void clear(JobDeadline which) { entry(which).at.reset(); }

  bool is_set(JobDeadline which) const { return entry(which).at.has_value(); }
  // False if it is not set.
  bool passed(JobDeadline which) const { return is_set(which) && entry(which).at->passed(); }
  // Call it only if it is set.
  std::chrono::milliseconds remaining(JobDeadline which) const {
    return entry(which).at->remaining();
  }

  // How long the event loop may sleep: until the first deadline at which it has something to do,
  // and at most `longest`.
  std::chrono::milliseconds sleep_time(std::chrono::milliseconds longest) const {
    for (const JobDeadline which : {JobDeadline::arrival, JobDeadline::decision, JobDeadline::kill,
                                    JobDeadline::kill_effect}) {
      if (is_set(which)) longest = std::min(longest, remaining(which));
    }
    return longest;
  }

  // Clears all deadlines, and remembers the time that was left.
  void suspend() {
    for (Entry& one : entries_) {
      if (!one.at) continue;
      one.left = one.at->remaining();
      one.at.reset();
    }
  }
  // Sets them again. Does nothing if they are not suspended.
  void resume() {
    for (Entry& one : entries_) {
      if (one.left) one.at = Deadline::after(*one.left);
      one.left.reset();
    }
  }

 private:
  struct Entry {
    std::optional<Deadline> at;
    // While the job is suspended.
    std::optional<std::chrono::milliseconds> left;
  };

  Entry& entry(JobDeadline which) { return entries_[static_cast<std::size_t>(which)]; }
  const Entry& entry(JobDeadline which) const { return entries_[static_cast<std::size_t>(which)]; }

  std::array<Entry, static_cast<std::size_t>(JobDeadline::output) + 1> entries_{};
};

}  // namespace lockstep
