// SPDX-License-Identifier: BSD-3-Clause
// The course of the loss within an epoch: means over a few sections.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "tools/recipes/train_result.h"

namespace lockstep {

class LossCurve {
 public:
  explicit LossCurve(std::int64_t steps_per_epoch) : steps_per_epoch_(steps_per_epoch) {}

  // `step` counts from 1 in the epoch. The loss is this rank's mean over its samples; it stays on
  // its device.
  void add(std::int64_t step, const at::Tensor& loss, std::int64_t samples);

  // Collective. The points of the steps since the last call, within the epoch: its end is at 1.
  std::vector<LossPoint> finish(ProcessGroup& group);

 private:
  struct Section {
    std::int64_t number;
    at::Tensor losses;  // their sum over the samples
    double samples;
  };

  std::int64_t steps_per_epoch_;
  std::vector<Section> sections_;
};

}  // namespace lockstep
