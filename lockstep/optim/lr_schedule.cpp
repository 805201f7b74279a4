// SPDX-License-Identifier: BSD-3-Clause
// Computes each schedule's rate at a step, and lists its numbers.
#include "lockstep/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <type_traits>

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep::optim {
namespace {

// One entry is for all groups.
template <class Value>
const Value& of_group(const std::vector<Value>& values, std::size_t group) {
  return values[values.size() == 1 ? 0 : group];
}

// The position of the schedule of this step.
std::size_t active(const SequentialLR& schedule, std::int64_t step) {
  const auto& milestones = schedule.milestones;
  return static_cast<std::size_t>(std::ranges::upper_bound(milestones, step) - milestones.begin());
}

// A part of a OneCycleLR: `lr` and `momentum` change from the first to the second of each pair.
struct CyclePhase {
  double end_step;
  std::pair<double, double> lr;
  std::pair<double, double> momentum;
};

std::vector<CyclePhase> phases_of(const OneCycleLR& schedule, double max_lr) {
  const double initial = max_lr / schedule.div_factor;
  const double minimum = initial / schedule.final_div_factor;
  const double low = schedule.base_momentum;
  const double high = schedule.max_momentum;
  const double rising = schedule.pct_start * static_cast<double>(schedule.total_steps);
  const auto last = static_cast<double>(schedule.total_steps - 1);
  std::vector<CyclePhase> phases{{rising - 1, {initial, max_lr}, {high, low}}};
  if (schedule.three_phase) {
    phases.push_back({2 * rising - 2, {max_lr, initial}, {low, high}});
    phases.push_back({last, {initial, minimum}, {high, high}});
  } else {
    phases.push_back({last, {max_lr, minimum}, {low, high}});
  }
  return phases;
}

double annealed(AnnealStrategy strategy, std::pair<double, double> ends, double part) {
  const auto [start, end] = ends;
  if (strategy == AnnealStrategy::linear) return (end - start) * part + start;
  return end + (start - end) / 2 * (std::cos(std::numbers::pi * part) + 1);
}

ScheduledRate rate_at(const ConstantLR& schedule, std::int64_t step, double initial, std::size_t) {
  return {step < schedule.total_iters ? initial * schedule.factor : initial};
}

ScheduledRate rate_at(const LinearLR& schedule, std::int64_t step, double initial, std::size_t) {
  const double part = static_cast<double>(std::min(step, schedule.total_iters)) /
                      static_cast<double>(schedule.total_iters);
  return {initial * std::lerp(schedule.start_factor, schedule.end_factor, part)};
}

ScheduledRate rate_at(const StepLR& schedule, std::int64_t step, double initial, std::size_t) {
  return {initial * std::pow(schedule.gamma, step / schedule.step_size)};
}

ScheduledRate rate_at(const MultiStepLR& schedule, std::int64_t step, double initial, std::size_t) {
  const auto passed = std::ranges::count_if(
      schedule.milestones, [&](std::int64_t milestone) { return milestone <= step; });
  return {initial * std::pow(schedule.gamma, passed)};
}

ScheduledRate rate_at(const ExponentialLR& schedule, std::int64_t step, double initial,
                      std::size_t) {
  return {initial * std::pow(schedule.gamma, step)};
}

ScheduledRate rate_at(const PolynomialLR& schedule, std::int64_t step, double initial,
                      std::size_t) {
  const double part = static_cast<double>(std::min(step, schedule.total_iters)) /
                      static_cast<double>(schedule.total_iters);
  return {initial * std::pow(1 - part, schedule.power)};
}

ScheduledRate rate_at(const CosineAnnealingLR& schedule, std::int64_t step, double initial,
                      std::size_t) {
  const double part = static_cast<double>(step) / static_cast<double>(schedule.T_max);
  const double weight = (1 + std::cos(std::numbers::pi * part)) / 2;
  return {schedule.eta_min + (initial - schedule.eta_min) * weight};
}

ScheduledRate rate_at(const LambdaLR& schedule, std::int64_t step, double initial,
                      std::size_t group) {
  const double factor = of_group(schedule.lr_lambda, group)(step);
  if (!std::isfinite(factor)) {
    throw UsageError(ErrorContext{.component = LambdaLR::kName},
                     fmt::format("lr_lambda returned {} for step {}", factor, step),
                     "return a finite factor");
  }
  return {initial * factor};
}

ScheduledRate rate_at(const OneCycleLR& schedule, std::int64_t step, double /*initial*/,
                      std::size_t group) {
  if (step > schedule.total_steps) {
    throw UsageError(ErrorContext{.component = OneCycleLR::kName},
                     fmt::format("this is step {} of {}", step, schedule.total_steps),
                     "set total_steps to the number of steps of the whole training");
  }
  const std::vector<CyclePhase> phases = phases_of(schedule, of_group(schedule.max_lr, group));
  double start = 0;
  auto phase = phases.begin();
  for (; static_cast<double>(step) > phase->end_step && phase + 1 != phases.end(); ++phase) {
    start = phase->end_step;
  }
  // A phase without steps is at its end.
  const double length = phase->end_step - start;
  const double part = length > 0 ? (static_cast<double>(step) - start) / length : 1;
  ScheduledRate rate{annealed(schedule.anneal_strategy, phase->lr, part)};
  if (schedule.cycle_momentum) {
    rate.momentum = annealed(schedule.anneal_strategy, phase->momentum, part);
  }
  return rate;
}

ScheduledRate rate_at(const SequentialLR& schedule, std::int64_t step, double initial,
                      std::size_t group) {
  const std::size_t i = active(schedule, step);
  const std::int64_t start = i == 0 ? 0 : schedule.milestones[i - 1];
  return schedule.schedulers[i].at(step - start, initial, group);
}

ScheduledRate rate_at(const ChainedScheduler& schedule, std::int64_t step, double initial,
                      std::size_t group) {
  ScheduledRate rate{initial};
  for (const LRSchedule& part : schedule.schedulers) {
    const ScheduledRate next = part.at(step, rate.lr, group);
    rate.lr = next.lr;
    if (next.momentum) rate.momentum = next.momentum;
  }
  return rate;
}

template <class Schedule>
constexpr bool kIsComposite =
    std::is_same_v<Schedule, SequentialLR> || std::is_same_v<Schedule, ChainedScheduler>;

// Each returns the last step that has a rate; nullopt if every step has one.
template <class Schedule>
std::optional<std::int64_t> last_step_of(const Schedule&) {
  return {};
}

std::optional<std::int64_t> last_step_of(const OneCycleLR& schedule) {
  return schedule.total_steps;
}

std::optional<std::int64_t> last_step_of(const SequentialLR& schedule) {
  std::int64_t start = 0;
  for (std::size_t i = 0; i < schedule.schedulers.size(); ++i) {
    const auto last = schedule.schedulers[i].last_step();
    const bool is_final = i == schedule.milestones.size();
    if (last && (is_final || start + *last + 1 < schedule.milestones[i])) return start + *last;
    if (!is_final) start = schedule.milestones[i];
  }
  return {};
}

std::optional<std::int64_t> last_step_of(const ChainedScheduler& schedule) {
  std::optional<std::int64_t> first;
  for (const LRSchedule& part : schedule.schedulers) {
    const auto last = part.last_step();
    if (last) first = std::min(first.value_or(*last), *last);
  }
  return first;
}

// Each calls add(name, number) for every number of the schedule, except those of its parts.
template <class Add>
void list_numbers(const ConstantLR& schedule, const Add& add) {
  add("factor", schedule.factor);
  add("total_iters", schedule.total_iters);
}

template <class Add>
void list_numbers(const LinearLR& schedule, const Add& add) {
  add("start_factor", schedule.start_factor);
  add("end_factor", schedule.end_factor);
  add("total_iters", schedule.total_iters);
}

template <class Add>
void list_numbers(const StepLR& schedule, const Add& add) {
  add("step_size", schedule.step_size);
  add("gamma", schedule.gamma);
}

template <class Add>
void list_numbers(const MultiStepLR& schedule, const Add& add) {
  add("milestones", schedule.milestones);
  add("gamma", schedule.gamma);
}

template <class Add>
void list_numbers(const ExponentialLR& schedule, const Add& add) {
  add("gamma", schedule.gamma);
}

template <class Add>
void list_numbers(const PolynomialLR& schedule, const Add& add) {
  add("total_iters", schedule.total_iters);
  add("power", schedule.power);
}

template <class Add>
void list_numbers(const CosineAnnealingLR& schedule, const Add& add) {
  add("T_max", schedule.T_max);
  add("eta_min", schedule.eta_min);
}

template <class Add>
void list_numbers(const LambdaLR& schedule, const Add& add) {
  add("lr_lambda", schedule.lr_lambda.size());
}

template <class Add>
void list_numbers(const OneCycleLR& schedule, const Add& add) {
  add("max_lr", schedule.max_lr);
  add("total_steps", schedule.total_steps);
  add("pct_start", schedule.pct_start);
  add("anneal_strategy", static_cast<int>(schedule.anneal_strategy));
  add("cycle_momentum", schedule.cycle_momentum);
  add("base_momentum", schedule.base_momentum);
  add("max_momentum", schedule.max_momentum);
  add("div_factor", schedule.div_factor);
  add("final_div_factor", schedule.final_div_factor);
  add("three_phase", schedule.three_phase);
}

template <class Add>
void list_numbers(const SequentialLR& schedule, const Add& add) {
  add("milestones", schedule.milestones);
}

template <class Add>
void list_numbers(const ChainedScheduler&, const Add&) {}

}  // namespace

ScheduledRate LRSchedule::at(std::int64_t step, double initial_lr, std::size_t group) const {
  return std::visit(
      [&](const auto& schedule) { return rate_at(schedule, step, initial_lr, group); }, kind_);
}

std::optional<std::int64_t> LRSchedule::last_step() const {
  return std::visit([](const auto& schedule) { return last_step_of(schedule); }, kind_);
}

template <class Condition>
bool LRSchedule::has_one_cycle(const Condition& condition) const {
  return std::visit(
      [&]<class Schedule>(const Schedule& schedule) {
        if constexpr (kIsComposite<Schedule>) {
          return std::ranges::any_of(schedule.schedulers, [&](const LRSchedule& part) {
            return part.has_one_cycle(condition);
          });
        } else if constexpr (std::is_same_v<Schedule, OneCycleLR>) {
          return condition(schedule);
        } else {
          return false;
        }
      },
      kind_);
}

bool LRSchedule::cycles_momentum() const {
  return has_one_cycle([](const OneCycleLR& cycle) { return cycle.cycle_momentum; });
}

bool LRSchedule::ignores_initial_lr() const {
  return has_one_cycle([](const OneCycleLR&) { return true; });
}

std::map<std::string, double> LRSchedule::numbers() const {
  std::map<std::string, double> numbers;
  std::visit(
      [&]<class Schedule>(const Schedule& schedule) {
        list_numbers(schedule, [&]<class Value>(const char* member, const Value& value) {
          const std::string name = fmt::format("{}.{}", Schedule::kName, member);
          if constexpr (std::is_arithmetic_v<Value>) {
            numbers[name] = static_cast<double>(value);
          } else {
            for (std::size_t i = 0; i < value.size(); ++i) {
              numbers[fmt::format("{}.{}", name, i)] = static_cast<double>(value[i]);
            }
          }
        });
        if constexpr (kIsComposite<Schedule>) {
          for (std::size_t i = 0; i < schedule.schedulers.size(); ++i) {
            for (const auto& [name, number] : schedule.schedulers[i].numbers()) {
              numbers[fmt::format("{}.{}.{}", Schedule::kName, i, name)] = number;
            }
          }
        }
      },
      kind_);
  return numbers;
}

}  // namespace lockstep::optim
