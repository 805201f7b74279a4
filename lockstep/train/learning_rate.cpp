// SPDX-License-Identifier: BSD-3-Clause
// Checks a schedule, and computes the rate of one step.
#include "lockstep/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// `step` and `steps` exclude the warm-up.
double decayed(const LearningRateSchedule& schedule, std::int64_t step, std::int64_t steps) {
  const double rate = schedule.base * schedule.scale;
  switch (schedule.decay) {
    case LearningRateDecay::none:
      return rate;
    case LearningRateDecay::step:
      return rate * std::pow(schedule.decay_factor, step / schedule.decay_steps);
    case LearningRateDecay::cosine:
      break;
  }
  const double part = static_cast<double>(std::min(step, steps)) /
                      static_cast<double>(std::max<std::int64_t>(steps, 1));
  return schedule.minimum + (rate - schedule.minimum) * (1 + std::cos(std::numbers::pi * part)) / 2;
}

}  // namespace

void check_schedule(const LearningRateSchedule& schedule) {
  const auto is_positive = [](double number) { return number > 0 && std::isfinite(number); };
  std::string fault;
  if (!is_positive(schedule.base) || !is_positive(schedule.scale)) {
    fault =
        fmt::format("base {} and scale {}; both must be positive", schedule.base, schedule.scale);
  } else if (!std::isfinite(schedule.decay_factor) || !std::isfinite(schedule.minimum)) {
    fault = fmt::format("decay_factor {} and minimum {}; both must be finite",
                        schedule.decay_factor, schedule.minimum);
  } else if (schedule.decay == LearningRateDecay::step && schedule.decay_steps < 1) {
    fault =
        fmt::format("a decay every {} steps; set decay_steps to at least 1", schedule.decay_steps);
  } else if ((schedule.decay == LearningRateDecay::cosine || schedule.scale != 1) &&
             schedule.steps < 1) {
    fault = fmt::format("{} steps; a warm-up and a cosine need the number of all steps",
                        schedule.steps);
  }
  if (!fault.empty()) throw UsageError("a learning rate schedule with " + fault);
}

double learning_rate_at(const LearningRateSchedule& schedule, std::int64_t step) {
  const std::int64_t warmup = schedule.warmup_steps();
  if (step >= warmup) return decayed(schedule, step - warmup, schedule.steps - warmup);
  const double part = static_cast<double>(step) / static_cast<double>(warmup);
  return schedule.base * (1 + (schedule.scale - 1) * part);
}

}  // namespace lockstep
