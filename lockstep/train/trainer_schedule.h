// SPDX-License-Identifier: BSD-3-Clause
// Public. The learning-rate schedule of a Trainer: a value, or a function of the number of steps.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <utility>

#include "lockstep/optim/lr_schedule.h"

namespace lockstep {

// Converts from any schedule of lr_schedule.h, and from a function that makes one for a run:
//
//   .lr_schedule = optim::StepLR{.step_size = 1'000}
//   .lr_schedule = [](std::int64_t steps) { return optim::CosineAnnealingLR{.T_max = steps}; }
//
// A schedule counts steps of the optimizer. Without one, rates stay as the optimizer was made and
// as the program sets them.
class TrainerSchedule {
 public:
  // Gets the number of steps of the whole run. A resumed run calls it again, with the steps of the
  // checkpoint and those that are left.
  using Function = std::function<optim::LRSchedule(std::int64_t steps)>;

  TrainerSchedule() = default;
  template <class Schedule>
  requires requires { Schedule::kName; }
  TrainerSchedule(Schedule schedule) : TrainerSchedule(optim::LRSchedule(std::move(schedule))) {}
  TrainerSchedule(optim::LRSchedule schedule)
      : function_([schedule = std::move(schedule)](std::int64_t) { return schedule; }) {}
  template <std::invocable<std::int64_t> F>
  TrainerSchedule(F function) : function_(std::move(function)), needs_steps_(true) {}

  explicit operator bool() const { return static_cast<bool>(function_); }
  // Whether it is a function.
  bool needs_steps() const { return needs_steps_; }
  // The schedule of a run of `steps` steps. Not for an empty object.
  optim::LRSchedule of(std::int64_t steps) const { return function_(steps); }

 private:
  Function function_;
  bool needs_steps_ = false;
};

}  // namespace lockstep
