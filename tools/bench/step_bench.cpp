// SPDX-License-Identifier: BSD-3-Clause
// Alternates between modes, optimizers, types and hooks, and measures their steps and memory.
#include "tools/bench/step_bench.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <torch/utils.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tools/bench/measurements.h"

namespace lockstep::bench {
namespace {

constexpr int kWarmUpSteps = 3;
constexpr double kSecondsATurn = 0.02;
constexpr double kSecondsAMode = 4;
constexpr int kFewestTurns = 8;
constexpr int kMostTurns = 100;

Training train_alone(const TrainingStep& step) {
  return Training(step);
}

void register_hook(DistributedDataParallel<torch::nn::Sequential>& model, CommHookKind kind,
                   const std::shared_ptr<ProcessGroup>& group) {
  switch (kind) {
    case CommHookKind::none:
      return;
    case CommHookKind::fp16:
      return model->register_comm_hook(fp16_compress_hook(group));
    case CommHookKind::bf16:
      return model->register_comm_hook(bf16_compress_hook(group));
    case CommHookKind::power_sgd:
      return model->register_comm_hook(
          power_sgd_hook({.group = group, .start_powerSGD_iter = kWarmUpSteps - 1}));
  }
}

Training train_together(const TrainingStep& step, const std::shared_ptr<ProcessGroup>& group) {
  return Training(step, [&](torch::nn::Sequential& net) -> Training::Wrapped {
    DistributedDataParallel model(net, group,
                                  {.check_finite = step.check_finite,
                                   .whole_gradients = step.optimizer != OptimizerKind::divided,
                                   .one_copy_per_host = step.optimizer == OptimizerKind::one_copy});
    register_hook(model, step.comm_hook, group);
    return {[model](const at::Tensor& input) { return model(input); }, model.ptr()};
  });
}

struct Schedule {
  int steps_a_turn;
  int turns;
};

// Rank 0 plans by its clock, so that all ranks have the same plan.
Schedule plan(ProcessGroup& group, double seconds_a_step) {
  const double steps = std::clamp(kSecondsATurn / seconds_a_step, 1.0, 100.0);
  const double turns = std::clamp(kSecondsAMode / (steps * seconds_a_step), double(kFewestTurns),
                                  double(kMostTurns));
  return broadcast_object(Schedule{static_cast<int>(steps), static_cast<int>(turns)}, 0, group);
}

// A run with one hook, and the seconds of each of its steps.
struct MeasuredDdp {
  CommHookKind comm_hook;
  Training training;
  std::vector<double> seconds = {};
};

// The runs with one optimizer and type, and the seconds of each of their steps. A process that
// trains alone has nothing to shard.
struct Measured {
  OptimizerKind optimizer;
  AmpKind amp;
  std::optional<Training> alone = {};
  std::vector<double> single = {};
  std::vector<double> floor = {};
  std::vector<MeasuredDdp> ddp = {};
};

Measured prepare(TrainingStep step, const std::vector<CommHookKind>& comm_hooks,
                 const std::shared_ptr<ProcessGroup>& group) {
  torch::manual_seed(0);  // the same weights and batch for each optimizer
  Measured measured{.optimizer = step.optimizer, .amp = step.amp};
  if (!is_sharded(step.optimizer)) measured.alone = train_alone(step);
  for (const CommHookKind comm_hook : comm_hooks) {
    step.comm_hook = comm_hook;
    measured.ddp.push_back({comm_hook, train_together(step, group)});
  }
  return measured;
}

void take_turn(ProcessGroup& group, Measured& measured, int steps) {
  if (measured.alone) {
    // The other ranks sleep at the next barrier.
    for (int i = 0; i < steps && group.rank() == 0; ++i) {
      measured.single.push_back(seconds_of([&] { measured.alone->step(); }));
    }
    for (int i = 0; i < steps; ++i) {
      measured.floor.push_back(seconds_of(group, [&] { measured.alone->step(); }));
    }
  }
  for (MeasuredDdp& ddp : measured.ddp) {
    for (int i = 0; i < steps; ++i) {
      ddp.seconds.push_back(seconds_of(group, [&] { ddp.training.step(); }));
    }
  }
}

StepRow make_row(ProcessGroup& group, const Measured& measured, StepMode mode,
                 std::vector<double> seconds_of_rank) {
  const auto seconds = slowest_of_ranks(group, std::move(seconds_of_rank));
  return {.optimizer = measured.optimizer,
          .amp = measured.amp,
          .mode = mode,
          .ranks = mode == StepMode::single ? 1 : group.size(),
          .us_p10 = quantile(seconds, 0.1) * 1e6,
          .us_median = median(seconds) * 1e6,
          .us_p90 = quantile(seconds, 0.9) * 1e6};
}

}  // namespace

std::string_view name(StepMode mode) {
  switch (mode) {
    case StepMode::single:
      return "single";
    case StepMode::floor:
      return "floor";
    case StepMode::ddp:
      return "ddp";
  }
  return "unknown";
}

StepRows measure_steps(const std::shared_ptr<ProcessGroup>& group, const TrainingStep& step,
                       const StepChoices& choices,
                       const std::function<void(int done, int all)>& on_turn) {
  std::vector<Measured> all;
  for (const OptimizerKind optimizer : choices.optimizers) {
    for (const AmpKind amp : choices.amps) {
      TrainingStep own = step;
      own.optimizer = optimizer;
      own.amp = amp;
      all.push_back(prepare(own, choices.comm_hooks, group));
    }
  }

  std::vector<double> warm_up;
  for (int i = 0; i < kWarmUpSteps; ++i) {
    for (Measured& measured : all) {
      for (MeasuredDdp& ddp : measured.ddp) {
        warm_up.push_back(seconds_of(*group, [&] { ddp.training.step(); }));
      }
      if (measured.alone) measured.alone->step();
    }
  }
  const Schedule schedule = plan(*group, median(warm_up));
  for (int turn = 0; turn < schedule.turns; ++turn) {
    if (on_turn && group->rank() == 0) on_turn(turn, schedule.turns);
    for (Measured& measured : all) take_turn(*group, measured, schedule.steps_a_turn);
  }

  StepRows rows;
  for (Measured& measured : all) {
    if (measured.alone) {
      measured.single.resize(measured.floor.size());
      rows.push_back(make_row(*group, measured, StepMode::single, measured.single));
      rows.push_back(make_row(*group, measured, StepMode::floor, measured.floor));
    }
    for (const MeasuredDdp& ddp : measured.ddp) {
      rows.push_back(make_row(*group, measured, StepMode::ddp, ddp.seconds));
      rows.back().comm_hook = ddp.comm_hook;
    }
  }
  return rows;
}

std::int64_t measure_step_memory(const std::shared_ptr<ProcessGroup>& group,
                                 const TrainingStep& step, StepMode mode) {
  constexpr int kSteps = 3;
  reset_peak_memory();
  Training training = mode == StepMode::ddp ? train_together(step, group) : train_alone(step);
  for (int i = 0; i < kSteps; ++i) training.step();
  group->barrier().wait();
  const std::int64_t peak = peak_memory();
  // Memory that a peer unmaps would count as this rank's.
  group->barrier().wait();
  return peak;
}

}  // namespace lockstep::bench
