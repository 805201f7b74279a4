// SPDX-License-Identifier: BSD-3-Clause
// What rank 0's observers of a training run get to see after each step.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

namespace lockstep {

struct StepSeen {
  // From 1, as in progress lines.
  std::int64_t epoch = 1;
  std::int64_t epochs = 1;
  // Within the epoch, from 1.
  std::int64_t step_of_epoch = 1;
  std::int64_t steps_per_epoch = 1;
  // Rank 0's mean over its part of the batch, on its device: reading it waits for a GPU.
  at::Tensor loss;
  double learning_rate = 0;
  // On all ranks together.
  std::int64_t samples = 0;

  std::int64_t step() const { return (epoch - 1) * steps_per_epoch + step_of_epoch; }
  std::int64_t steps() const { return epochs * steps_per_epoch; }
};

using StepObserver = std::function<void(const StepSeen&)>;

}  // namespace lockstep
