// SPDX-License-Identifier: BSD-3-Clause
// A Trainer's learning-rate schedule as the numbers of a checkpoint.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/train/learning_rate.h"

namespace lockstep {

using ScheduleNumbers = std::map<std::string, double>;

// Whether it leaves every rate as it is.
bool is_flat(const LearningRateSchedule& schedule);
// The same for the schedule of a checkpoint.
bool was_flat(const ScheduleNumbers& checkpoint);

// The options by their names, `decay` by its position in the enum, and the rate of each parameter
// group before the schedule: "initial_lr.0" is PyTorch's initial_lr of group 0.
ScheduleNumbers schedule_numbers(const LearningRateSchedule& schedule,
                                 const std::vector<double>& rates);

// The checkpoint's initial rates, which a resumed run uses; `rates` where it has none.
std::vector<double> initial_rates(const ScheduleNumbers& checkpoint, std::vector<double> rates);

// One line about the schedule and one about the initial rates, each only if a resumed run has
// others than its checkpoint. Two schedules that are flat do not differ.
std::vector<std::string> schedule_differences(const LearningRateSchedule& schedule,
                                              const std::vector<double>& rates,
                                              const ScheduleNumbers& checkpoint);

}  // namespace lockstep
