// SPDX-License-Identifier: BSD-3-Clause
// What the observers of a training run share: the function of a step, and a rank's peak memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include <c10/core/Device.h>

#include "lockstep/train/fit_options.h"
#include "lockstep/train/progress_bar.h"

namespace lockstep {

// Called after each step, with the steps of the run.
using StepObserver = std::function<void(const RunSteps& run, const StepSummary& step)>;

// The peak memory of this process on a device. The kernel takes up to a millisecond to count the
// pages of a process, so that it is read once a second.
class PeakGauge {
 public:
  explicit PeakGauge(at::Device device) : device_(device) {}

  // In 10^6 bytes, at most a second old; nullopt if unknown.
  std::optional<double> megabytes();

 private:
  at::Device device_;
  std::optional<std::chrono::steady_clock::time_point> read_at_;
  std::optional<double> megabytes_;
};

}  // namespace lockstep
