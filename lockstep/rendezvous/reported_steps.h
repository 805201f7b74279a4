// SPDX-License-Identifier: BSD-3-Clause
// How many training steps a job has completed, as its rank 0 tells its launcher from time to time,
// for the launcher's report of a failure.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep {

// The key under which the launcher's store holds the number.
inline constexpr const char* kStepsKey = "lockstep/steps";
// nullopt if the text is no such number.
std::optional<std::int64_t> decode_steps(std::string_view text);

// Reports a loop's steps. Not thread-safe.
class StepReports {
 public:
  // Tells the launcher of this process, if it has one, at most once a second. Most calls only look
  // at the clock; one that tells may block for a second if the launcher is stopped.
  void note(std::int64_t steps) noexcept;

 private:
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace lockstep
