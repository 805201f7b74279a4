// SPDX-License-Identifier: BSD-3-Clause
// Runs modes and optimizers in turns, and measures their steps and memory.
#include "tools/bench/step_bench.h"

#include <algorithm>
#include <optional>
#include <vector>

#include <torch/utils.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/peak_memory.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tools/bench/statistics.h"
#include "tools/bench/stopwatch.h"

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

Training train_together(const TrainingStep& step, const std::shared_ptr<ProcessGroup>& group) {
  return Training(step, [&](torch::nn::Sequential& net) -> Training::Wrapped {
    const DistributedDataParallel model(
        net, group,
        {.check_finite = step.check_finite,
         .whole_gradients = step.optimizer != OptimizerKind::divided});
    return {[model](const at::Tensor& input) { return model(input); }, model.ptr()};
  });
}

struct Schedule {
  int steps_a_turn;
  int turns;
};

// By rank 0's clock, so that it is the same on all ranks.
Schedule plan(ProcessGroup& group, double seconds_a_step) {
  const double steps = std::clamp(kSecondsATurn / seconds_a_step, 1.0, 100.0);
  const double turns = std::clamp(kSecondsAMode / (steps * seconds_a_step), double(kFewestTurns),
                                  double(kMostTurns));
  return broadcast_object(Schedule{static_cast<int>(steps), static_cast<int>(turns)}, 0, group);
}

// The trainings with one optimizer, and the seconds of each of their steps. A process that trains
// alone has nothing to shard.
struct Measured {
  TrainingStep step;
  std::optional<Training> alone;
  Training together;
  std::vector<double> single = {};
  std::vector<double> floor = {};
  std::vector<double> ddp = {};
};

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
  for (int i = 0; i < steps; ++i) {
    measured.ddp.push_back(seconds_of(group, [&] { measured.together.step(); }));
  }
}

StepRow make_row(ProcessGroup& group, const Measured& measured, StepMode mode,
                 std::vector<double> seconds_of_rank) {
  const auto seconds = slowest_of_ranks(group, std::move(seconds_of_rank));
  return {.optimizer = measured.step.optimizer,
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
                       const std::vector<OptimizerKind>& optimizers) {
  std::vector<Measured> all;
  for (const OptimizerKind optimizer : optimizers) {
    torch::manual_seed(0);  // the same weights and batch for each
    TrainingStep own = step;
    own.optimizer = optimizer;
    all.push_back({own, {}, train_together(own, group)});
    if (!is_sharded(optimizer)) all.back().alone = train_alone(own);
  }

  std::vector<double> warm_up;
  for (int i = 0; i < kWarmUpSteps; ++i) {
    for (Measured& measured : all) {
      warm_up.push_back(seconds_of(*group, [&] { measured.together.step(); }));
      if (measured.alone) measured.alone->step();
    }
  }
  const Schedule schedule = plan(*group, median(warm_up));
  for (int turn = 0; turn < schedule.turns; ++turn) {
    for (Measured& measured : all) take_turn(*group, measured, schedule.steps_a_turn);
  }

  StepRows rows;
  for (Measured& measured : all) {
    if (measured.alone) {
      measured.single.resize(measured.floor.size());
      rows.push_back(make_row(*group, measured, StepMode::single, measured.single));
      rows.push_back(make_row(*group, measured, StepMode::floor, measured.floor));
    }
    rows.push_back(make_row(*group, measured, StepMode::ddp, measured.ddp));
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
