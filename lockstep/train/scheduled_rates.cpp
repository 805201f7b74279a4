// SPDX-License-Identifier: BSD-3-Clause
// Multiplies the initial rates by the schedule's factor.
#include "lockstep/train/scheduled_rates.h"

#include <cstddef>
#include <utility>

namespace lockstep {

void ScheduledRates::use(torch::optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  for (auto& parameters : optimizer.param_groups()) {
    initial_.push_back(parameters.options().get_lr());
  }
  numbers_ = schedule_numbers(schedule_, initial_);
}

void ScheduledRates::set(std::int64_t steps) {
  if (!is_flat(schedule_)) scale(learning_rate_at(schedule_, steps));
}

std::vector<std::string> ScheduledRates::resume() {
  auto lines = schedule_differences(schedule_, initial_, numbers_);
  initial_ = initial_rates(numbers_, std::move(initial_));
  // A flat schedule sets no rate, and the loaded ones are those of the checkpoint's last step.
  if (is_flat(schedule_) && !was_flat(numbers_)) scale(1);
  numbers_ = schedule_numbers(schedule_, initial_);
  return lines;
}

void ScheduledRates::scale(double factor) {
  for (std::size_t i = 0; i < initial_.size(); ++i) {
    optimizer_->param_groups()[i].options().set_lr(initial_[i] * factor);
  }
}

}  // namespace lockstep
