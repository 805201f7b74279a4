// SPDX-License-Identifier: BSD-3-Clause
// Times training steps of the bare model and of its data-parallel wrappers.
#include "tools/bench/dp_bench.h"

#include <algorithm>
#include <memory>

#include <torch/utils.h>

#include "lockstep/parallel/data_parallel.h"
#include "tools/bench/measurements.h"

namespace lockstep::bench {
namespace {

constexpr int kStepsBefore = 5;
constexpr double kSecondsARound = 1;

DataParallelOptions options_of(const TrainingStep& step, int replicas) {
  DataParallelOptions options{
      .make_replica = [make = step.model.make_net] { return make().ptr(); }};
  if (step.device.is_cpu()) {
    options.replicas = replicas;
  } else {
    options.device_ids.assign(static_cast<std::size_t>(replicas), step.device);
  }
  return options;
}

Training training_of(const TrainingStep& step, const DpRow& row) {
  switch (row.mode) {
    case DpMode::single:
      break;
    case DpMode::dp:
      return Training(step, [&](torch::nn::Sequential& net) -> Training::Wrapped {
        return {[model = DataParallel(net, options_of(step, row.replicas))](
                    const at::Tensor& input) { return model(input); }};
      });
    case DpMode::libtorch:
      return Training(step, [&](torch::nn::Sequential& net) -> Training::Wrapped {
        const std::vector<at::Device> devices(static_cast<std::size_t>(row.replicas), step.device);
        return {
            [=](const at::Tensor& input) { return libtorch_data_parallel(net, input, devices); }};
      });
  }
  return Training(step);
}

}  // namespace

std::string_view name(DpMode mode) {
  switch (mode) {
    case DpMode::single:
      return "single";
    case DpMode::dp:
      return "dp";
    case DpMode::libtorch:
      return "libtorch";
  }
  return "unknown";
}

std::vector<DpRow> dp_rows(int replicas, at::Device device) {
  if (device.is_cpu()) {
    return {{}, {.threads = replicas}, {.mode = DpMode::dp, .replicas = replicas}};
  }
  return {{},
          {.mode = DpMode::dp},
          {.mode = DpMode::dp, .replicas = replicas},
          {.mode = DpMode::libtorch, .replicas = replicas}};
}

DpRow measure_dp(const TrainingStep& step, DpRow row) {
  torch::manual_seed(0);
  Training training = training_of(step, row);
  for (int i = 1; i < kStepsBefore; ++i) training.step();
  const double one = seconds_of([&] { training.step(); });
  const int steps = static_cast<int>(std::clamp(kSecondsARound / one, 5.0, 10'000.0));
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
