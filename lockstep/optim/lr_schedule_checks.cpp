// SPDX-License-Identifier: BSD-3-Clause
// Checks the members of each schedule.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/lr_schedule.h"

namespace lockstep::optim {
namespace {

// Checks of one schedule. Each text says what is wrong and what would be right.
class Checks {
 public:
  Checks(const char* name, std::size_t groups) : name_(name), groups_(groups) {}

  std::size_t groups() const { return groups_; }

  // `range` describes what holds.
  template <class Number>
  void require(bool holds, const char* member, Number value, std::string_view range) const {
    if (!holds) refuse(fmt::format("{} is {}", member, value), fmt::format("it must be {}", range));
  }
  template <class Number>
  void require_positive(const char* member, Number value) const {
    require(value > 0 && std::isfinite(static_cast<double>(value)), member, value, "positive");
  }
  void require_finite(const char* member, double value) const {
    require(std::isfinite(value), member, value, "finite");
  }
  // A factor of rates: of a whole run of them too, without an overflow.
  void require_gamma(double value) const {
    require(value > 0 && std::isfinite(value), "gamma", value, "positive, and mostly below 1");
  }
  void require_within(const char* member, double value, double least, double most) const {
    require(value >= least && value <= most, member, value,
            fmt::format("from {} to {}", least, most));
  }
  void require_for_groups(const char* member, std::size_t entries) const {
    if (entries == 1 || entries == groups_) return;
    refuse(fmt::format("{} has {} entries, and the optimizer {} parameter groups", member, entries,
                       groups_),
           "give one for all groups, or one for each");
  }
  [[noreturn]] void refuse(const std::string& cause, const std::string& remedy) const {
    throw UsageError(ErrorContext{.component = name_}, cause, remedy);
  }

 private:
  const char* name_;
  std::size_t groups_;
};

void check_schedule(const ConstantLR& schedule, const Checks& checks) {
  checks.require_within("factor", schedule.factor, 0, 1);
  checks.require(schedule.total_iters >= 0, "total_iters", schedule.total_iters, "0 or more");
}

void check_schedule(const LinearLR& schedule, const Checks& checks) {
  checks.require(schedule.start_factor > 0 && schedule.start_factor <= 1, "start_factor",
                 schedule.start_factor, "above 0 and at most 1");
  checks.require_within("end_factor", schedule.end_factor, 0, 1);
  checks.require_positive("total_iters", schedule.total_iters);
}

void check_schedule(const StepLR& schedule, const Checks& checks) {
  checks.require_positive("step_size", schedule.step_size);
  checks.require_gamma(schedule.gamma);
}

void check_schedule(const MultiStepLR& schedule, const Checks& checks) {
  for (const std::int64_t milestone : schedule.milestones) {
    checks.require(milestone >= 0, "a milestone", milestone, "0 or more");
  }
  checks.require_gamma(schedule.gamma);
}

void check_schedule(const ExponentialLR& schedule, const Checks& checks) {
  checks.require_gamma(schedule.gamma);
}

void check_schedule(const PolynomialLR& schedule, const Checks& checks) {
  checks.require_positive("total_iters", schedule.total_iters);
  checks.require_positive("power", schedule.power);
}

void check_schedule(const CosineAnnealingLR& schedule, const Checks& checks) {
  checks.require_positive("T_max", schedule.T_max);
  checks.require_finite("eta_min", schedule.eta_min);
}

void check_schedule(const LambdaLR& schedule, const Checks& checks) {
  checks.require_for_groups("lr_lambda", schedule.lr_lambda.size());
  for (const auto& function : schedule.lr_lambda) {
    if (!function) checks.refuse("a function of lr_lambda is empty", "give one of the step");
  }
}

void check_schedule(const OneCycleLR& schedule, const Checks& checks) {
  checks.require_for_groups("max_lr", schedule.max_lr.size());
  for (const double rate : schedule.max_lr) checks.require_positive("max_lr", rate);
  checks.require_positive("total_steps", schedule.total_steps);
  checks.require_within("pct_start", schedule.pct_start, 0, 1);
  checks.require_within("base_momentum", schedule.base_momentum, 0, 1);
  checks.require_within("max_momentum", schedule.max_momentum, 0, 1);
  checks.require_positive("div_factor", schedule.div_factor);
  checks.require_positive("final_div_factor", schedule.final_div_factor);
}

template <class Composite>
void check_parts(const Composite& schedule, const Checks& checks) {
  if (schedule.schedulers.empty()) checks.refuse("schedulers is empty", "give at least one");
  for (std::size_t i = 0; i < schedule.schedulers.size(); ++i) {
    try {
      schedule.schedulers[i].check(checks.groups());
    } catch (const UsageError&) {
      rethrow_within({.component = Composite::kName, .operation = fmt::format("scheduler {}", i)});
    }
  }
}

void check_schedule(const SequentialLR& schedule, const Checks& checks) {
  check_parts(schedule, checks);
  const auto& milestones = schedule.milestones;
  if (milestones.size() + 1 != schedule.schedulers.size()) {
    checks.refuse(fmt::format("there are {} schedulers and {} milestones",
                              schedule.schedulers.size(), milestones.size()),
                  "give one milestone fewer than schedulers");
  }
  std::int64_t before = 0;
  for (const std::int64_t milestone : milestones) {
    checks.require(milestone > before, "a milestone", milestone,
                   fmt::format("above {}, as milestones rise", before));
    before = milestone;
  }
}

void check_schedule(const ChainedScheduler& schedule, const Checks& checks) {
  check_parts(schedule, checks);
}

}  // namespace

void LRSchedule::check(std::size_t groups) const {
  std::visit(
      [&]<class Schedule>(const Schedule& schedule) {
        check_schedule(schedule, Checks(Schedule::kName, groups));
      },
      kind_);
}

}  // namespace lockstep::optim
