// SPDX-License-Identifier: BSD-3-Clause
// The learning rate of one step.
#include "lockstep/train/learning_rate.h"

namespace lockstep {

double learning_rate_at(const LearningRateSchedule& schedule, std::int64_t step) {
  const std::int64_t warmup = schedule.warmup_steps();
  if (step >= warmup) return schedule.base * schedule.scale;
  const double part = static_cast<double>(step) / static_cast<double>(warmup);
  return schedule.base * (1 + (schedule.scale - 1) * part);
}

}  // namespace lockstep
