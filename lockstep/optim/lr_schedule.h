// SPDX-License-Identifier: BSD-3-Clause
// Public. Learning-rate schedules, with the names, the defaults and the rates of
// torch.optim.lr_scheduler. They are values, which an LRScheduler (lr_scheduler.h) applies to an
// optimizer:
//
//   using namespace lockstep::optim;
//   LRScheduler scheduler(optimizer, SequentialLR{
//       .schedulers = {LinearLR{.start_factor = 0.01, .total_iters = 500},   // warm-up
//                      CosineAnnealingLR{.T_max = 9'500}},
//       .milestones = {500}});
//
// The rates that the optimizer was made with, the initial rates, are the only place for a base
// rate: every schedule is relative to them, except OneCycleLR. Every schedule counts the calls of
// LRScheduler::step(), whether the program makes one after each step or after each epoch.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::optim {

class LRSchedule;

// The rate times `factor`, and the initial rate from step `total_iters` on.
struct ConstantLR {
  static constexpr const char* kName = "ConstantLR";
  double factor = 1.0 / 3;  // from 0 to 1
  std::int64_t total_iters = 5;
};

// The rate times a factor that changes linearly from `start_factor` at step 0 to `end_factor` at
// step `total_iters`, and then stays.
struct LinearLR {
  static constexpr const char* kName = "LinearLR";
  double start_factor = 1.0 / 3;  // above 0, up to 1
  double end_factor = 1;          // from 0 to 1
  std::int64_t total_iters = 5;
};

// The rate times `gamma` after each `step_size` steps.
struct StepLR {
  static constexpr const char* kName = "StepLR";
  std::int64_t step_size = 0;  // required
  double gamma = 0.1;
};

// The rate times `gamma` from each of these steps on. A step that is listed twice counts twice.
struct MultiStepLR {
  static constexpr const char* kName = "MultiStepLR";
  std::vector<std::int64_t> milestones = {};
  double gamma = 0.1;
};

// The rate times `gamma` after each step.
struct ExponentialLR {
  static constexpr const char* kName = "ExponentialLR";
  double gamma = 0;  // required
};

// The rate times (1 - step / total_iters) to the power `power`; 0 from step `total_iters` on.
struct PolynomialLR {
  static constexpr const char* kName = "PolynomialLR";
  std::int64_t total_iters = 5;
  double power = 1;
};

// Half a period of a cosine, from the initial rate at step 0 to `eta_min` at step `T_max`. After
// it, the rate rises again, as in PyTorch.
struct CosineAnnealingLR {
  static constexpr const char* kName = "CosineAnnealingLR";
  std::int64_t T_max = 0;  // required
  double eta_min = 0;
};

// The rate times a function of the step: one function for all parameter groups, or one for each.
// It must return the same for the same step: it is called again when a run resumes.
struct LambdaLR {
  static constexpr const char* kName = "LambdaLR";
  std::vector<std::function<double(std::int64_t step)>> lr_lambda = {};  // required
};

enum class AnnealStrategy { cos, linear };

// Up from max_lr / div_factor to max_lr, and down to max_lr / div_factor / final_div_factor at step
// total_steps - 1. The initial rates of the optimizer do not count. The momentum of SGD and
// RMSprop, or the first beta of Adam and AdamW, goes the other way.
struct OneCycleLR {
  static constexpr const char* kName = "OneCycleLR";
  std::vector<double> max_lr = {};  // required: one for all parameter groups, or one for each
  std::int64_t total_steps = 0;     // required: epochs times steps of an epoch
  double pct_start = 0.3;           // the part of the steps in which the rate rises, from 0 to 1
  AnnealStrategy anneal_strategy = AnnealStrategy::cos;
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  // Goes down to max_lr / div_factor in as many steps as up, and to the end from there.
  bool three_phase = false;
};

// One schedule after the other, each with its steps counted from 0: the second starts, from the
// initial rate, at step milestones[0], and so on.
struct SequentialLR {
  static constexpr const char* kName = "SequentialLR";
  std::vector<LRSchedule> schedulers;
  std::vector<std::int64_t> milestones = {};  // rising; one fewer than schedulers
};

// All schedules at once: each takes the rate of the one before it for its initial rate. PyTorch's
// result depends on the steps before if a CosineAnnealingLR with an eta_min or a LambdaLR is among
// them; this one does not.
struct ChainedScheduler {
  static constexpr const char* kName = "ChainedScheduler";
  std::vector<LRSchedule> schedulers;
};

struct ScheduledRate {
  double lr = 0;
  std::optional<double> momentum = {};  // only of a OneCycleLR that cycles it
};

// Any of the schedules.
class LRSchedule {
 public:
  using Kind =
      std::variant<ConstantLR, LinearLR, StepLR, MultiStepLR, ExponentialLR, PolynomialLR,
                   CosineAnnealingLR, LambdaLR, OneCycleLR, SequentialLR, ChainedScheduler>;

  template <class Schedule>
  requires(!std::derived_from<Schedule, LRSchedule>) LRSchedule(Schedule schedule)
      : kind_(std::move(schedule)) {}

  // UsageError if a required member is missing, a value is out of range, or a list has neither one
  // entry nor one for each parameter group.
  void check(std::size_t groups) const;

  // The rate of parameter group `group` after `step` steps. Depends on nothing else, so a resumed
  // run has the same bits. UsageError after the last step of a OneCycleLR, and for the result of a
  // LambdaLR that is not finite. check() must have accepted the schedule.
  ScheduledRate at(std::int64_t step, double initial_lr, std::size_t group = 0) const;

  // Whether it sets the momentum of the optimizer too, at some step.
  bool cycles_momentum() const;
  // Whether it has rates of its own at some step, that of a OneCycleLR.
  bool ignores_initial_lr() const;

  // The last step that has a rate, of a OneCycleLR; nullopt if every step has one. check() must
  // have accepted the schedule.
  std::optional<std::int64_t> last_step() const;

  // Every number by its name: "SequentialLR.1.CosineAnnealingLR.T_max". For a LambdaLR, the number
  // of its functions.
  std::map<std::string, double> numbers() const;

 private:
  template <class Condition>
  bool has_one_cycle(const Condition& condition) const;

  Kind kind_;
};

}  // namespace lockstep::optim
