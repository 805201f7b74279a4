// SPDX-License-Identifier: BSD-3-Clause
// The learning rate of each step: the linear scaling rule with gradual warm-up of Goyal et al. 2017
// ("Accurate, Large Minibatch SGD"), by which k times the global batch takes k times the rate, and
// how the rate falls afterwards.
#pragma once

#include <cstdint>

namespace lockstep {

// What happens to the rate after the warm-up.
enum class LearningRateDecay {
  none,
  step,    // as PyTorch's StepLR: after every decay_steps it is multiplied by decay_factor
  cosine,  // as PyTorch's CosineAnnealingLR: it falls to `minimum` at the end of training
};

struct LearningRateSchedule {
  double base = 1;
  // k: the global batch as a multiple of the one for which base is meant. 1 leaves base unchanged.
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

// For a step counted from 0: grows linearly from base at step 0 to base * scale at step
// warmup_steps(), from which on the decay counts its steps.
double learning_rate_at(const LearningRateSchedule& schedule, std::int64_t step);

}  // namespace lockstep
