// SPDX-License-Identifier: BSD-3-Clause
// Multiplies the initial rates by the schedule's factor, names a schedule's numbers, and describes
// where they differ from a checkpoint's.
#include "lockstep/train/scheduled_rates.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

constexpr const char* kDecay = "decay";

double number_or(const ScheduleNumbers& numbers, const std::string& name, double otherwise) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? otherwise : found->second;
}

std::string initial_rate_name(std::size_t group) {
  return fmt::format("initial_lr.{}", group);
}

double number_of(LearningRateDecay decay) {
  return static_cast<double>(decay);
}

std::string option_text(const std::string& name, double value) {
  if (name == kDecay) {
    if (value == number_of(LearningRateDecay::none)) return "none";
    if (value == number_of(LearningRateDecay::step)) return "step";
    if (value == number_of(LearningRateDecay::cosine)) return "cosine";
  }
  return fmt::format("{}", value);
}

// "scale 2 (checkpoint: 1)" for each that differs.
std::vector<std::string> differing_numbers(const ScheduleNumbers& own,
                                           const ScheduleNumbers& checkpoint) {
  std::vector<std::string> texts;
  for (const auto& [name, value] : own) {
    const double saved = number_or(checkpoint, name, value);
    if (saved == value) continue;
    texts.push_back(fmt::format("{} {} (checkpoint: {})", name, option_text(name, value),
                                option_text(name, saved)));
  }
  return texts;
}

bool leaves_rates(double base, double scale, double decay) {
  return base == 1 && scale == 1 && decay == number_of(LearningRateDecay::none);
}

ScheduleNumbers option_numbers(const LearningRateSchedule& schedule) {
  return {{"base", schedule.base},
          {"scale", schedule.scale},
          {"steps", static_cast<double>(schedule.steps)},
          {kDecay, number_of(schedule.decay)},
          {"decay_steps", static_cast<double>(schedule.decay_steps)},
          {"decay_factor", schedule.decay_factor},
          {"minimum", schedule.minimum}};
}

ScheduleNumbers rate_numbers(const std::vector<double>& rates) {
  ScheduleNumbers numbers;
  for (std::size_t i = 0; i < rates.size(); ++i) numbers[initial_rate_name(i)] = rates[i];
  return numbers;
}

}  // namespace

bool is_flat(const LearningRateSchedule& schedule) {
  return leaves_rates(schedule.base, schedule.scale, number_of(schedule.decay));
}

bool was_flat(const ScheduleNumbers& checkpoint) {
  return leaves_rates(number_or(checkpoint, "base", 1), number_or(checkpoint, "scale", 1),
                      number_or(checkpoint, kDecay, number_of(LearningRateDecay::none)));
}

ScheduleNumbers schedule_numbers(const LearningRateSchedule& schedule,
                                 const std::vector<double>& rates) {
  ScheduleNumbers numbers = option_numbers(schedule);
  numbers.merge(rate_numbers(rates));
  return numbers;
}

std::vector<double> initial_rates(const ScheduleNumbers& checkpoint, std::vector<double> rates) {
  for (std::size_t i = 0; i < rates.size(); ++i) {
    rates[i] = number_or(checkpoint, initial_rate_name(i), rates[i]);
  }
  return rates;
}

std::vector<std::string> schedule_differences(const LearningRateSchedule& schedule,
                                              const std::vector<double>& rates,
                                              const ScheduleNumbers& checkpoint) {
  std::vector<std::string> lines;
  const auto options = differing_numbers(option_numbers(schedule), checkpoint);
  if (!options.empty() && !(is_flat(schedule) && was_flat(checkpoint))) {
    lines.push_back(fmt::format(
        "the learning-rate schedule differs from the checkpoint's: {}; this program's is used",
        fmt::join(options, ", ")));
  }
  const auto differing_rates = differing_numbers(rate_numbers(rates), checkpoint);
  if (!differing_rates.empty()) {
    lines.push_back(fmt::format(
        "the optimizer's learning rates differ from the checkpoint's: {}; the checkpoint's are "
        "used",
        fmt::join(differing_rates, ", ")));
  }
  return lines;
}

void ScheduledRates::use(torch::optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  for (auto& parameters : optimizer.param_groups()) {
    initial_.push_back(parameters.options().get_lr());
  }
  numbers_ = schedule_numbers(schedule_, initial_);
}

void ScheduledRates::set(std::int64_t step) {
  if (!is_flat(schedule_)) scale(learning_rate_at(schedule_, step));
}

std::vector<std::string> ScheduledRates::resume() {
  auto lines = schedule_differences(schedule_, initial_, numbers_);
  initial_ = initial_rates(numbers_, std::move(initial_));
  // A flat schedule sets no rate, and the loaded rates are from the checkpoint's last step.
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
