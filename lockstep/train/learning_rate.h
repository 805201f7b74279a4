// SPDX-License-Identifier: BSD-3-Clause
// The linear scaling rule with gradual warm-up of Goyal et al. 2017 ("Accurate, Large Minibatch
// SGD"): k times the global batch takes k times the learning rate, after a warm-up.
#pragma once

#include <cstdint>

namespace lockstep {

struct LearningRateSchedule {
  double base = 0;
  // k: the global batch as a multiple of the one for which base is meant. 1 leaves base unchanged.
  double scale = 1;
  // The number of steps of the whole training.
  std::int64_t steps = 0;

  // The first tenth of all steps (Goyal et al. take 5 of 90 epochs).
  std::int64_t warmup_steps() const { return scale == 1 ? 0 : steps / 10; }
};

// For a step counted from 0: grows linearly from base at step 0 to base * scale at step
// warmup_steps(), and stays there.
double learning_rate_at(const LearningRateSchedule& schedule, std::int64_t step);

}  // namespace lockstep
