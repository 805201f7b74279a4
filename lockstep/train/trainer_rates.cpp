// SPDX-License-Identifier: BSD-3-Clause
// Moves rates between the optimizer, its schedulers and the numbers of a checkpoint, and describes
// where the numbers differ from the program's.
#include "lockstep/train/trainer_rates.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {
namespace {

using Numbers = std::map<std::string, double>;

constexpr const char* kLastEpoch = "last_epoch";
constexpr const char* kScale = "lr_scale";
// The numbers of a checkpoint that describe no schedule.
constexpr std::array<std::string_view, 7> kOthers{
    kLastEpoch, kScale, "initial_lr.", "program_lr.", "best", "num_bad_epochs", "cooldown_counter"};

double number_or(const Numbers& numbers, const std::string& name, double otherwise) {
  const auto found = numbers.find(name);
  return found == numbers.end() ? otherwise : found->second;
}

std::string initial_lr(std::size_t group) {
  return fmt::format("initial_lr.{}", group);
}

std::string program_lr(std::size_t group) {
  return fmt::format("program_lr.{}", group);
}

bool is_of_schedule(const std::string& name) {
  return std::ranges::none_of(kOthers,
                              [&](std::string_view other) { return name.starts_with(other); });
}

// Lockstep 0.1 saved the options of a schedule that multiplied the rates by base and scale.
bool is_of_first_version(const Numbers& numbers) {
  return !numbers.empty() && !numbers.contains(kLastEpoch);
}

}  // namespace

void TrainerRates::use(torch::optim::Optimizer& optimizer) {
  if (options_.reduce_lr_on_plateau) {
    optim::ReduceLROnPlateauOptions plateau = *options_.reduce_lr_on_plateau;
    plateau.mode =
        options_.watch.lower_is_better ? optim::PlateauMode::min : optim::PlateauMode::max;
    plateau_.emplace(optimizer, std::move(plateau));
  }
  optimizer_ = &optimizer;
  for (auto& group : optimizer.param_groups()) {
    const double rate = group.options().get_lr();
    program_rates_.push_back(rate);
    initial_rates_.push_back(rate * options_.lr_scale);
    group.options().set_lr(initial_rates_.back());
  }
}

void TrainerRates::set_optimizer(torch::optim::Optimizer& optimizer) {
  optimizer_ = &optimizer;
  if (scheduler_) scheduler_->set_optimizer(optimizer);
  if (plateau_) plateau_->set_optimizer(optimizer);
}

void TrainerRates::before_load() {
  numbers_.clear();  // a checkpoint without such numbers leaves it so
}

void TrainerRates::forget_plateau() {
  for (const char* const name : {"best", "num_bad_epochs", "cooldown_counter"}) {
    numbers_.erase(name);
  }
}

std::vector<std::string> TrainerRates::begin(const std::optional<optim::LRSchedule>& schedule,
                                             std::int64_t steps, bool loaded) {
  Saved before{.program_rates = program_rates_, .lr_scale = options_.lr_scale};
  if (loaded) {
    before = read(numbers_);
    if (plateau_ && before.state.contains("num_bad_epochs"))
      plateau_->load_state_dict(before.state);
  } else if (scheduler_) {
    before.state = scheduler_->state_dict();
  }
  std::vector<std::string> schedules;
  auto& groups = optimizer_->param_groups();
  if (schedule) {
    const bool is_new = !loaded && !scheduler_;
    scheduler_.emplace(*optimizer_, *schedule);
    if (!is_new) {
      before.state[kLastEpoch] = static_cast<double>(steps);
      schedules = scheduler_->load_state_dict(before.state);
    }
  } else if (loaded) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      initial_rates_[i] = before.state.at(initial_lr(i));
      const double rate = before.has_schedule ? initial_rates_[i]
                                              : groups[i].options().get_lr() *
                                                    (options_.lr_scale / before.lr_scale);
      groups[i].options().set_lr(rate);
    }
  }
  if (!loaded || numbers_.empty()) return {};
  auto lines = differences(before, schedules);
  program_rates_ = std::move(before.program_rates);
  return lines;
}

TrainerRates::Saved TrainerRates::read(const Numbers& numbers) const {
  Saved saved{.program_rates = {},
              .state = numbers,
              .lr_scale = number_or(numbers, kScale, options_.lr_scale),
              .has_schedule = std::ranges::any_of(
                  numbers, [](const auto& entry) { return is_of_schedule(entry.first); })};
  double base = 1;
  if (is_of_first_version(numbers)) {
    base = number_or(numbers, "base", 1);
    saved.lr_scale = number_or(numbers, "scale", 1);
    saved.has_schedule = base != 1 || saved.lr_scale != 1 || number_or(numbers, "decay", 0) != 0;
  }
  for (std::size_t i = 0; i < program_rates_.size(); ++i) {
    const double initial = number_or(numbers, initial_lr(i), initial_rates_[i]);
    double& own = saved.state[initial_lr(i)];
    if (is_of_first_version(numbers)) {
      saved.program_rates.push_back(initial);
      own = initial * base * options_.lr_scale;
    } else {
      saved.program_rates.push_back(number_or(numbers, program_lr(i), program_rates_[i]));
      own = initial * (options_.lr_scale / saved.lr_scale);
    }
  }
  return saved;
}

// `schedules`: what the scheduler says.
std::vector<std::string> TrainerRates::differences(
    const Saved& saved, const std::vector<std::string>& schedules) const {
  std::vector<std::string> lines;
  std::vector<std::string> options = schedules;
  if (options_.lr_scale != saved.lr_scale) {
    options.push_back(fmt::format("lr_scale is {} (saved: {})", options_.lr_scale, saved.lr_scale));
  }
  if (!scheduler_ && saved.has_schedule) options.emplace_back("there is none any more");
  if (!options.empty()) {
    lines.push_back(fmt::format(
        "the learning-rate schedule differs from the checkpoint's: {}; this program's is used",
        fmt::join(options, ", ")));
  }
  std::vector<std::string> rates;
  for (std::size_t i = 0; i < program_rates_.size(); ++i) {
    if (program_rates_[i] == saved.program_rates[i]) continue;
    rates.push_back(fmt::format("{} {} (checkpoint: {})", initial_lr(i), program_rates_[i],
                                saved.program_rates[i]));
  }
  if (!rates.empty()) {
    lines.push_back(fmt::format(
        "the optimizer's learning rates differ from the checkpoint's: {}; the checkpoint's are "
        "used",
        fmt::join(rates, ", ")));
  }
  return lines;
}

void TrainerRates::step() {
  if (scheduler_) scheduler_->step();
}

bool TrainerRates::evaluated(double metric) {
  return plateau_ && plateau_->step(metric);
}

void TrainerRates::settle() {
  if (!scheduler_) return;
  const std::vector<double>& last = scheduler_->get_last_lr();
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < last.size(); ++i) {
    if (groups[i].options().get_lr() == last[i]) continue;
    scheduler_->load_state_dict(scheduler_->state_dict());
    return;
  }
}

void TrainerRates::note_numbers() {
  numbers_.clear();
  if (scheduler_) numbers_ = scheduler_->state_dict();
  if (plateau_) numbers_.merge(plateau_->state_dict());
  numbers_.emplace(kLastEpoch, 0);
  numbers_[kScale] = options_.lr_scale;
  for (std::size_t i = 0; i < program_rates_.size(); ++i) {
    numbers_[program_lr(i)] = program_rates_[i];
    numbers_.emplace(initial_lr(i), initial_rates_[i]);
  }
}

}  // namespace lockstep
