// SPDX-License-Identifier: BSD-3-Clause
// Writes rates and momenta into the options of parameter groups, and counts steps and metrics.
#include "lockstep/optim/lr_scheduler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"

namespace lockstep::optim {
namespace {

constexpr const char* kScheduler = "LRScheduler";
constexpr const char* kPlateau = "ReduceLROnPlateau";
constexpr const char* kSteps = "last_epoch";
constexpr const char* kBest = "best";
constexpr const char* kBad = "num_bad_epochs";
constexpr const char* kCooldown = "cooldown_counter";

using SchedulerState = std::map<std::string, double>;

// Calls visit(number) with the momentum or the first beta; false if the optimizer has neither.
template <class Visit>
bool with_momentum(torch::optim::OptimizerParamGroup& group, const Visit& visit) {
  auto* const options = &group.options();
  if (auto* const sgd = dynamic_cast<torch::optim::SGDOptions*>(options)) {
    visit(sgd->momentum());
  } else if (auto* const rmsprop = dynamic_cast<torch::optim::RMSpropOptions*>(options)) {
    visit(rmsprop->momentum());
  } else if (auto* const adam = dynamic_cast<torch::optim::AdamOptions*>(options)) {
    visit(std::get<0>(adam->betas()));
  } else if (auto* const adamw = dynamic_cast<torch::optim::AdamWOptions*>(options)) {
    visit(std::get<0>(adamw->betas()));
  } else {
    return false;
  }
  return true;
}

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

std::string initial_name(std::size_t group) {
  return fmt::format("initial_lr.{}", group);
}

double required(const SchedulerState& state, const std::string& name, const char* who) {
  const auto found = state.find(name);
  if (found != state.end() && std::isfinite(found->second)) return found->second;
  throw CheckpointError(ErrorContext{.component = who},
                        found == state.end()
                            ? fmt::format("the state has no {}", name)
                            : fmt::format("{} is {} in the state", name, found->second),
                        fmt::format("load what state_dict() of a {} returned", who));
}

std::int64_t required_count(const SchedulerState& state, const std::string& name, const char* who) {
  // Up to it, a double has every whole number.
  constexpr double kMost = 1LL << 53;
  const double number = required(state, name, who);
  if (number >= 0 && number <= kMost && number == std::floor(number)) {
    return static_cast<std::int64_t>(number);
  }
  throw CheckpointError(ErrorContext{.component = who},
                        fmt::format("{} is {} in the state, and no count", name, number));
}

std::vector<std::string> differences(const SchedulerState& own, const SchedulerState& saved) {
  std::vector<std::string> lines;
  for (const auto& [name, value] : own) {
    const auto found = saved.find(name);
    if (found == saved.end()) {
      lines.push_back(fmt::format("{} is {} (not in the saved schedule)", name, value));
    } else if (found->second != value) {
      lines.push_back(fmt::format("{} is {} (saved: {})", name, value, found->second));
    }
  }
  return lines;
}

ReduceLROnPlateauOptions checked(ReduceLROnPlateauOptions options, std::size_t groups) {
  const auto require = [](bool holds, const std::string& cause, const char* remedy) {
    if (!holds) throw UsageError(ErrorContext{.component = kPlateau}, cause, remedy);
  };
  require(options.factor >= 0 && options.factor < 1, fmt::format("factor is {}", options.factor),
          "it must be from 0 to below 1");
  require(options.patience >= 0 && options.cooldown >= 0,
          fmt::format("patience is {} and cooldown {}", options.patience, options.cooldown),
          "neither may be negative");
  require(options.threshold >= 0 && options.eps >= 0,
          fmt::format("threshold is {} and eps {}", options.threshold, options.eps),
          "neither may be negative");
  const std::size_t entries = options.min_lr.size();
  require(
      entries == 1 || entries == groups,
      fmt::format("min_lr has {} entries, and the optimizer {} parameter groups", entries, groups),
      "give one for all groups, or one for each");
  for (const double rate : options.min_lr) {
    require(rate >= 0, fmt::format("min_lr is {}", rate), "it must not be negative");
  }
  return options;
}

}  // namespace

LRScheduler::LRScheduler(torch::optim::Optimizer& optimizer, LRSchedule schedule)
    : optimizer_(&optimizer), schedule_(std::move(schedule)), last_lr_(rates_of(optimizer)) {
  schedule_.check(last_lr_.size());
  for (std::size_t i = 0; i < last_lr_.size(); ++i) {
    if (std::isfinite(last_lr_[i])) continue;
    throw UsageError(ErrorContext{.component = kScheduler},
                     fmt::format("the learning rate of parameter group {} is {}", i, last_lr_[i]),
                     "make the optimizer with a finite rate");
  }
  for (auto& group : optimizer_->param_groups()) {
    if (!schedule_.cycles_momentum() || with_momentum(group, [](double) {})) continue;
    const auto& options = group.options();
    throw UsageError(ErrorContext{.component = kScheduler},
                     fmt::format("the schedule cycles a momentum, and {} is none of SGD, RMSprop, "
                                 "Adam and AdamW",
                                 c10::demangle(typeid(options).name())),
                     "set .cycle_momentum = false");
  }
  set(0, last_lr_, rates_at(0, last_lr_));
}

void LRScheduler::step() {
  const std::size_t groups = optimizer_->param_groups().size();
  if (groups != initial_lr_.size()) {
    throw UsageError(ErrorContext{.component = kScheduler},
                     fmt::format("the optimizer has {} parameter groups, and had {}", groups,
                                 initial_lr_.size()),
                     "make a new scheduler after adding a group");
  }
  std::vector<double> initial = changed_initial_lr();
  const auto rates = rates_at(steps_ + 1, initial);
  set(steps_ + 1, std::move(initial), rates);
}

std::map<std::string, double> LRScheduler::state_dict() const {
  SchedulerState state = schedule_.numbers();
  state[kSteps] = static_cast<double>(steps_);
  const std::vector<double> initial = changed_initial_lr();
  for (std::size_t i = 0; i < initial.size(); ++i) state[initial_name(i)] = initial[i];
  return state;
}

std::vector<std::string> LRScheduler::load_state_dict(const std::map<std::string, double>& state) {
  const std::int64_t steps = required_count(state, kSteps, kScheduler);
  std::vector<double> initial;
  for (std::size_t i = 0; i < initial_lr_.size(); ++i) {
    initial.push_back(required(state, initial_name(i), kScheduler));
  }
  if (state.contains(initial_name(initial.size()))) {
    throw CheckpointError(
        ErrorContext{.component = kScheduler},
        fmt::format("the state is of an optimizer with more than {} parameter groups",
                    initial.size()),
        "make the optimizer with the groups that it had");
  }
  const auto rates = rates_at(steps, initial);
  set(steps, std::move(initial), rates);
  return differences(schedule_.numbers(), state);
}

// Returns the initial rates, in proportion to what something else has made of the last ones.
std::vector<double> LRScheduler::changed_initial_lr() const {
  std::vector<double> initial = initial_lr_;
  const auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < std::min(initial.size(), groups.size()); ++i) {
    const double current = groups[i].options().get_lr();
    if (current != last_lr_[i] && last_lr_[i] != 0) initial[i] *= current / last_lr_[i];
  }
  return initial;
}

std::vector<ScheduledRate> LRScheduler::rates_at(std::int64_t step,
                                                 const std::vector<double>& initial) const {
  std::vector<ScheduledRate> rates;
  for (std::size_t i = 0; i < initial.size(); ++i) {
    rates.push_back(schedule_.at(step, initial[i], i));
  }
  return rates;
}

void LRScheduler::set(std::int64_t step, std::vector<double> initial,
                      const std::vector<ScheduledRate>& rates) {
  auto& groups = optimizer_->param_groups();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const ScheduledRate& rate = rates[i];
    groups[i].options().set_lr(rate.lr);
    if (rate.momentum) with_momentum(groups[i], [&](double& own) { own = *rate.momentum; });
    last_lr_[i] = rate.lr;
  }
  initial_lr_ = std::move(initial);
  steps_ = step;
}

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                                     ReduceLROnPlateauOptions options)
    : optimizer_(&optimizer),
      options_(checked(std::move(options), optimizer.param_groups().size())) {}

ReduceLROnPlateau::ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                                     ReduceLROnPlateauOptions options, GroupArgument group)
    : ReduceLROnPlateau(optimizer, std::move(options)) {
  static_cast<void>(group.get());  // not null
  group_ = group.shared();
}

bool ReduceLROnPlateau::step(double metric) {
  metric = over_ranks(metric);
  if (is_better(metric)) {
    best_ = metric;
    bad_ = 0;
  } else {
    ++bad_;
  }
  if (cooldown_ > 0) {
    --cooldown_;
    bad_ = 0;
  }
  if (bad_ <= options_.patience) return false;
  cooldown_ = options_.cooldown;
  bad_ = 0;
  return reduce();
}

std::vector<double> ReduceLROnPlateau::get_last_lr() const {
  return rates_of(*optimizer_);
}

std::map<std::string, double> ReduceLROnPlateau::state_dict() const {
  SchedulerState state{{kBad, static_cast<double>(bad_)},
                       {kCooldown, static_cast<double>(cooldown_)}};
  if (best_) state[kBest] = *best_;
  return state;
}

void ReduceLROnPlateau::load_state_dict(const std::map<std::string, double>& state) {
  const std::int64_t bad = required_count(state, kBad, kPlateau);
  const std::int64_t cooldown = required_count(state, kCooldown, kPlateau);
  std::optional<double> best;
  if (state.contains(kBest)) best = required(state, kBest, kPlateau);
  bad_ = bad;
  cooldown_ = cooldown;
  best_ = best;
}

// The sum is in rank order, so that every rank gets the same bits. Equal metrics stay what they
// are.
double ReduceLROnPlateau::over_ranks(double metric) const {
  if (!group_ || group_->size() == 1) return metric;
  const std::vector<double> metrics = all_gather_object(metric, group_);
  if (std::ranges::all_of(metrics, [&](double other) { return other == metrics[0]; })) {
    return metrics[0];
  }
  double sum = 0;
  for (const double other : metrics) sum += other;
  return sum / static_cast<double>(metrics.size());
}

bool ReduceLROnPlateau::is_better(double metric) const {
  if (!std::isfinite(metric)) return false;
  if (!best_) return true;
  const double threshold = options_.threshold;
  const bool relative = options_.threshold_mode == ThresholdMode::rel;
  if (options_.mode == PlateauMode::min) {
    return metric < (relative ? *best_ * (1 - threshold) : *best_ - threshold);
  }
  return metric > (relative ? *best_ * (1 + threshold) : *best_ + threshold);
}

bool ReduceLROnPlateau::reduce() {
  auto& groups = optimizer_->param_groups();
  bool reduced = false;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const double lowest = options_.min_lr[std::min(i, options_.min_lr.size() - 1)];
    const double rate = groups[i].options().get_lr();
    const double lower = std::max(rate * options_.factor, lowest);
    if (rate - lower <= options_.eps) continue;
    groups[i].options().set_lr(lower);
    reduced = true;
  }
  return reduced;
}

}  // namespace lockstep::optim
