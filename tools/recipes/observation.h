// SPDX-License-Identifier: BSD-3-Clause
// What the observers of a training run share: the numbers of its steps, and a rank's peak memory.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include <c10/core/Device.h>

#include "lockstep/train/trainer_options.h"

namespace lockstep {

// The steps of a run. A resumed run counts them in its own batches, whatever the size of the
// batches before the checkpoint.
struct RunSteps {
  std::int64_t epochs = 1;
  std::int64_t per_epoch = 1;
  std::int64_t global_batch_size = 1;
  int ranks = 1;

  // The number of a step, from 1: in its epoch, and in the run.
  std::int64_t in_epoch(const StepSummary& step) const {
    return (step.samples_of_epoch + global_batch_size - 1) / global_batch_size;
  }
  std::int64_t in_run(const StepSummary& step) const {
    return step.epoch * per_epoch + in_epoch(step);
  }
  std::int64_t all() const { return epochs * per_epoch; }
};

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
