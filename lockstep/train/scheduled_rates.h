// SPDX-License-Identifier: BSD-3-Clause
// The learning rates that a Trainer's schedule gives to the optimizer's parameter groups.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/train/learning_rate.h"
#include "lockstep/train/schedule_numbers.h"

namespace lockstep {

class ScheduledRates {
 public:
  // Keeps a reference to the schedule.
  explicit ScheduledRates(const LearningRateSchedule& schedule) : schedule_(schedule) {}

  // Once: begins with the optimizer's rates. The optimizer must outlive this object.
  void use(torch::optim::Optimizer& optimizer);
  // Sets the rates of the step that follows so many others. A flat schedule does not override a
  // rate that somebody else set.
  void set(std::int64_t steps);

  // For a checkpoint, which may replace them.
  ScheduleNumbers& numbers() { return numbers_; }
  // After a checkpoint was loaded into the optimizer and the numbers: the initial rates are then
  // the checkpoint's. Returns lines that say how the program's schedule and rates differ.
  std::vector<std::string> resume();

 private:
  void scale(double factor);

  const LearningRateSchedule& schedule_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<double> initial_;  // of each parameter group
  ScheduleNumbers numbers_;
};

}  // namespace lockstep
