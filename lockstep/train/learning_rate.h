// SPDX-License-Identifier: BSD-3-Clause
// Public. Learning-rate schedules: the linear scaling rule with gradual warm-up of Goyal et al.
// 2017 ("Accurate, Large Minibatch SGD"), which takes k times the rate for k times the global
// batch, and a decay after it.
#pragma once

#include <cstdint>

namespace lockstep {

// How the rate changes after the warm-up.
enum class LearningRateDecay {
  none,
  step,    // like PyTorch's StepLR: multiplied by decay_factor every decay_steps steps
  cosine,  // like PyTorch's CosineAnnealingLR: falls to `minimum` at the end of training
};

struct LearningRateSchedule {
  double base = 1;
  // k: the global batch divided by the batch for which `base` was chosen. 1 leaves base unchanged.
  double scale = 1;
  // The number of steps of the whole run; needed for a warm-up and for a cosine.
  std::int64_t steps = 0;
  LearningRateDecay decay = LearningRateDecay::none;
  std::int64_t decay_steps = 0;
  double decay_factor = 0.1;
  double minimum = 0;

  // The first tenth of all steps (Goyal et al. take 5 of 90 epochs); 0 if scale is 1.
  std::int64_t warmup_steps() const { return scale == 1 ? 0 : steps / 10; }
};

// UsageError for a base or scale that is not positive and finite, for a decay_factor or minimum
// that is not finite, for a warm-up or a cosine without steps, and for LearningRateDecay::step
// without decay_steps.
void check_schedule(const LearningRateSchedule& schedule);

// Returns the rate for `step` (counted from 0): grows linearly from base at step 0 to base * scale
// at step warmup_steps(), where the decay starts counting.
double learning_rate_at(const LearningRateSchedule& schedule, std::int64_t step);

}  // namespace lockstep
