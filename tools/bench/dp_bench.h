// SPDX-License-Identifier: BSD-3-Clause
// Measures the gain of DataParallel. On this machine's cores: a training step in one thread, in
// several intra-op threads, and in the same number of replicas, on the same batch. On a GPU: the
// cost with one replica, and with several on the same GPU next to libtorch's own data_parallel.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include <torch/nn/modules/container/sequential.h>

#include "tools/bench/training.h"

namespace lockstep::bench {

// single is the bare model, libtorch is torch::nn::parallel::data_parallel of it.
enum class DpMode : std::uint8_t { single, dp, libtorch };

std::string_view name(DpMode mode);

struct DpRow {
  DpMode mode = DpMode::single;
  int replicas = 1;
  int threads = 1;
  double us_p10 = 0;
  double us_median = 0;
  double us_p90 = 0;
};

// Returns the rows to compare for `replicas` replicas, without times. The bare model comes first.
std::vector<DpRow> dp_rows(int replicas, at::Device device);

// Trains for about a second, and returns the row with its times. Run it in a process that does
// nothing else and has the row's threads: libraries' threads keep polling after their work, and
// disturb later measurements.
DpRow measure_dp(const TrainingStep& step, DpRow row);

// Combines the rows of several rounds: the median of each figure.
DpRow median_of(const std::vector<DpRow>& rounds);

// libtorch's own function for several GPUs in one process, torch::nn::parallel::data_parallel, with
// which DataParallel is compared. BackendError if libtorch has no CUDA.
at::Tensor libtorch_data_parallel(const torch::nn::Sequential& net, const at::Tensor& input,
                                  const std::vector<at::Device>& devices);

}  // namespace lockstep::bench
