// SPDX-License-Identifier: BSD-3-Clause
// Applies a Trainer's schedule to the learning rates of the optimizer, and keeps both in a
// checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/train/learning_rate.h"

namespace lockstep {

// A learning-rate schedule as the numbers of a checkpoint: the options by their names, `decay` by
// its position in the enum, and the rate of each parameter group before the schedule.
// "initial_lr.0" is PyTorch's initial_lr of group 0.
using ScheduleNumbers = std::map<std::string, double>;

ScheduleNumbers schedule_numbers(const LearningRateSchedule& schedule,
                                 const std::vector<double>& rates);

// Whether the schedule leaves every rate unchanged.
bool is_flat(const LearningRateSchedule& schedule);
// Whether the schedule of the checkpoint left every rate unchanged.
bool was_flat(const ScheduleNumbers& checkpoint);

// Returns the initial rates for a resumed run: the rates of the checkpoint, or `rates` where it has
// none.
std::vector<double> initial_rates(const ScheduleNumbers& checkpoint, std::vector<double> rates);

// Returns a line about the schedule if it differs from the checkpoint's, and one about the initial
// rates if they do. Two flat schedules do not differ, nor does a number that the checkpoint lacks.
std::vector<std::string> schedule_differences(const LearningRateSchedule& schedule,
                                              const std::vector<double>& rates,
                                              const ScheduleNumbers& checkpoint);

class ScheduledRates {
 public:
  // Keeps a reference to the schedule.
  explicit ScheduledRates(const LearningRateSchedule& schedule) : schedule_(schedule) {}

  // Call it once. Takes the optimizer's rates as the initial ones. The optimizer must outlive this
  // object.
  void use(torch::optim::Optimizer& optimizer);
  // Sets the rates for step number `step` (counted from 0). A flat schedule does not override a
  // rate that was set elsewhere.
  void set(std::int64_t step);

  // The numbers that a checkpoint saves, and replaces when it is loaded.
  ScheduleNumbers& numbers() { return numbers_; }
  // Call it after a checkpoint was loaded into the optimizer and the numbers: takes the initial
  // rates of the checkpoint. Returns schedule_differences().
  std::vector<std::string> resume();

 private:
  void scale(double factor);

  const LearningRateSchedule& schedule_;
  torch::optim::Optimizer* optimizer_ = nullptr;
  std::vector<double> initial_;  // one for each parameter group
  ScheduleNumbers numbers_;
};

}  // namespace lockstep
