// SPDX-License-Identifier: BSD-3-Clause
// Runs the three modes in turns, and measures their steps and memory.
#include "tools/bench/step_bench.h"

#include <algorithm>
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
  return Training(step, [&](torch::nn::Sequential& net) {
    return [model = DistributedDataParallel(net, group, {.check_finite = step.check_finite})](
               const at::Tensor& input) { return model(input); };
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

StepRow make_row(StepMode mode, int ranks, const std::vector<double>& seconds) {
  StepRow row;
  row.mode = mode;
  row.ranks = ranks;
  row.us_p10 = quantile(seconds, 0.1) * 1e6;
  row.us_median = median(seconds) * 1e6;
  row.us_p90 = quantile(seconds, 0.9) * 1e6;
  return row;
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

StepRows measure_steps(const std::shared_ptr<ProcessGroup>& group, const TrainingStep& step) {
  torch::manual_seed(0);
  Training alone = train_alone(step);
  Training together = train_together(step, group);

  std::vector<double> warm_up;
  for (int i = 0; i < kWarmUpSteps; ++i) {
    warm_up.push_back(seconds_of(*group, [&] { together.step(); }));
    alone.step();
  }
  const Schedule schedule = plan(*group, median(warm_up));

  std::vector<double> single;
  std::vector<double> floor;
  std::vector<double> ddp;
  for (int turn = 0; turn < schedule.turns; ++turn) {
    // The other ranks sleep at the next barrier.
    for (int i = 0; i < schedule.steps_a_turn && group->rank() == 0; ++i) {
      single.push_back(seconds_of([&] { alone.step(); }));
    }
    for (int i = 0; i < schedule.steps_a_turn; ++i) {
      floor.push_back(seconds_of(*group, [&] { alone.step(); }));
    }
    for (int i = 0; i < schedule.steps_a_turn; ++i) {
      ddp.push_back(seconds_of(*group, [&] { together.step(); }));
    }
  }
  single.resize(floor.size());
  return {make_row(StepMode::single, 1, slowest_of_ranks(*group, std::move(single))),
          make_row(StepMode::floor, group->size(), slowest_of_ranks(*group, std::move(floor))),
          make_row(StepMode::ddp, group->size(), slowest_of_ranks(*group, std::move(ddp)))};
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
