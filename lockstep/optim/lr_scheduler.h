// SPDX-License-Identifier: BSD-3-Clause
// Public. Sets the learning rates of an optimizer in any training loop: by a schedule
// (lr_schedule.h), or when a metric stops improving, like torch.optim.lr_scheduler:
//
//   lockstep::optim::LRScheduler scheduler(optimizer, lockstep::optim::StepLR{.step_size = 1'000});
//   for (...) {
//     loss(model(input), target).backward();
//     optimizer.step();
//     scheduler.step();
//   }
//
// They work with any optimizer, sharded ones included, and keep the rates equal on all ranks if the
// ranks make the same calls. For a checkpoint:
//
//   auto numbers = scheduler.state_dict();
//   checkpoints.save({.module = net.ptr(), .optimizer = &adam, .scheduler = &numbers}, position);
//   ...
//   if (checkpoints.load({.module = net.ptr(), .optimizer = &adam, .scheduler = &numbers})) {
//     scheduler.load_state_dict(numbers);
//   }
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/optim/lr_schedule.h"

namespace lockstep::optim {

// Applies a schedule to every parameter group. For one thread at a time.
class LRScheduler {
 public:
  // Takes the optimizer's rates for the initial rates, and sets those of step 0. The optimizer must
  // outlive this object. UsageError for what LRSchedule::check() refuses, for an initial rate that
  // is not finite, and for an optimizer without the momentum that the schedule cycles.
  LRScheduler(torch::optim::Optimizer& optimizer, LRSchedule schedule);
  LRScheduler(const LRScheduler&) = delete;
  LRScheduler& operator=(const LRScheduler&) = delete;

  // Sets the rates of the next step. Call it after optimizer.step().
  //
  // If something else has changed a rate since the last call, such as a ReduceLROnPlateau or the
  // program, the initial rate changes in the same proportion, so that the change lasts. UsageError,
  // and nothing has changed, if the optimizer has got another parameter group, and for what
  // LRSchedule::at() refuses.
  void step();

  // Continues with another optimizer, which has the same rates and must outlive this object.
  void set_optimizer(torch::optim::Optimizer& optimizer) { optimizer_ = &optimizer; }

  // The number of steps so far.
  std::int64_t steps() const { return steps_; }
  // The rate of each parameter group, as last set.
  const std::vector<double>& get_last_lr() const { return last_lr_; }

  // The number of steps ("last_epoch", as PyTorch calls it), the initial rates ("initial_lr.0"),
  // and the numbers of the schedule, so that a difference shows. A rate that something else has
  // changed since the last step() counts, as in the next one.
  std::map<std::string, double> state_dict() const;
  // Goes on where the state was saved: sets the rates and momenta of that step in the optimizer,
  // whose own state may be loaded before or after. Other entries are ignored. Returns a line for
  // each number of the schedule that differs from the saved one; this object's schedule is used.
  // CheckpointError, and nothing has changed, if the number of steps or a rate is missing, if there
  // are rates of more groups, or if a number is out of range; UsageError as in step().
  std::vector<std::string> load_state_dict(const std::map<std::string, double>& state);

 private:
  std::vector<double> changed_initial_lr() const;
  std::vector<ScheduledRate> rates_at(std::int64_t step, const std::vector<double>& initial) const;
  void set(std::int64_t step, std::vector<double> initial, const std::vector<ScheduledRate>& rates);

  torch::optim::Optimizer* optimizer_;
  LRSchedule schedule_;
  std::int64_t steps_ = 0;
  std::vector<double> initial_lr_;  // one for each parameter group, as the next
  std::vector<double> last_lr_;
};

enum class PlateauMode { min, max };
enum class ThresholdMode { rel, abs };

struct ReduceLROnPlateauOptions {
  // Whether a smaller metric is better, as of a loss, or a larger one, as of an accuracy.
  PlateauMode mode = PlateauMode::min;
  // The rates are multiplied by it; from 0 to below 1.
  double factor = 0.1;
  // The number of calls without improvement that are tolerated: one more reduces the rates.
  std::int64_t patience = 10;
  // An improvement is larger than this: relative to the best metric, or absolute.
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::rel;
  // The number of calls after a reduction that do not count.
  std::int64_t cooldown = 0;
  // The lowest rates: one for all parameter groups, or one for each. Groups that the optimizer gets
  // later have the last one.
  std::vector<double> min_lr = {0};
  // A smaller reduction is not made.
  double eps = 1e-8;
};

// Reduces the rates when a metric has stopped improving. It may be used together with an
// LRScheduler, for a warm-up: each keeps the other's changes. For one thread at a time.
class ReduceLROnPlateau {
 public:
  // The optimizer must outlive this object. UsageError for options out of range.
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer,
                             ReduceLROnPlateauOptions options = {});
  // step() is collective, and uses the mean of the ranks' metrics. Otherwise give the same metric
  // on every rank.
  ReduceLROnPlateau(torch::optim::Optimizer& optimizer, ReduceLROnPlateauOptions options,
                    GroupArgument group);
  ReduceLROnPlateau(const ReduceLROnPlateau&) = delete;
  ReduceLROnPlateau& operator=(const ReduceLROnPlateau&) = delete;

  // Call it after each evaluation. Returns whether it has reduced a rate. A metric that is infinite
  // or NaN is no improvement.
  bool step(double metric);

  // Continues with another optimizer, which has the same rates and must outlive this object.
  void set_optimizer(torch::optim::Optimizer& optimizer) { optimizer_ = &optimizer; }

  // The rate of each parameter group.
  std::vector<double> get_last_lr() const;

  // PyTorch's "best" (once there is one), "num_bad_epochs" and "cooldown_counter".
  // The rates are in the optimizer's or the LRScheduler's state. An LRScheduler has other names:
  // merge both maps for a checkpoint.
  std::map<std::string, double> state_dict() const;
  // Other entries are ignored. CheckpointError, and nothing has changed, if a counter is missing or
  // out of range.
  void load_state_dict(const std::map<std::string, double>& state);

 private:
  double over_ranks(double metric) const;
  bool is_better(double metric) const;
  bool reduce();

  torch::optim::Optimizer* optimizer_;
  ReduceLROnPlateauOptions options_;
  std::shared_ptr<ProcessGroup> group_;  // may be null
  std::optional<double> best_;
  std::int64_t bad_ = 0;       // calls in a row without improvement
  std::int64_t cooldown_ = 0;  // calls that do not count yet
};

}  // namespace lockstep::optim
