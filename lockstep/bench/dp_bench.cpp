// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/bench/dp_bench.h"

#include <algorithm>
#include <memory>

#include <torch/utils.h>

#include "lockstep/bench/statistics.h"
#include "lockstep/bench/stopwatch.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep::bench {
namespace {

constexpr int steps_before = 5;
constexpr double seconds_a_round = 1;

Training training_of(const TrainingStep& step, int replicas) {
  if (replicas == 1) return Training(step);
  return Training(step, [&](torch::nn::Sequential& net) {
    const auto model = std::make_shared<DataParallel<torch::nn::Sequential>>(
        net,
        DataParallelOptions{.replicas = replicas,
                            .make_replica = [make = step.model.make_net] { return make().ptr(); }});
    return [model](const at::Tensor& input) { return model->forward(input); };
  });
}

}  // namespace

std::vector<DpRow> dp_rows(int replicas) {
  return {{}, {.threads = replicas}, {.replicas = replicas, .threads = 1}};
}

DpRow measure_dp(const TrainingStep& step, DpRow row) {
  torch::manual_seed(0);
  Training training = training_of(step, row.replicas);
  for (int i = 1; i < steps_before; ++i) training.step();
  const double one = seconds_of([&] { training.step(); });
  const int steps = static_cast<int>(std::clamp(seconds_a_round / one, 5.0, 10'000.0));
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) seconds.push_back(seconds_of([&] { training.step(); }));
  row.us_p10 = quantile(seconds, 0.1) * 1e6;
  row.us_median = median(seconds) * 1e6;
  row.us_p90 = quantile(seconds, 0.9) * 1e6;
  return row;
}

DpRow median_of(const std::vector<DpRow>& rounds) {
  DpRow row = rounds.front();
  for (double DpRow::*const figure : {&DpRow::us_p10, &DpRow::us_median, &DpRow::us_p90}) {
    std::vector<double> values;
    for (const DpRow& round : rounds) values.push_back(round.*figure);
    row.*figure = median(values);
  }
  return row;
}

}  // namespace lockstep::bench
