// SPDX-License-Identifier: BSD-3-Clause
// What DataParallel gains. On this machine's cores: a training step in one thread, in several
// intra-op threads, and in as many replicas, on the same batch. On a GPU: what it costs with one
// replica, and with several on the same GPU beside libtorch's own data_parallel.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/bench/training.h"

namespace lockstep::bench {

// single is the bare model, libtorch its torch::nn::parallel::data_parallel.
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

// What there is to compare with so many replicas, without times. The bare model is the first.
std::vector<DpRow> dp_rows(int replicas, at::Device device);

// Trains for about a second, and returns the row with its times. For a process that does nothing
// else and has the row's threads: libraries' own threads go on looking for work after they had
// some, and disturb what comes next.
DpRow measure_dp(const TrainingStep& step, DpRow row);

// The rows of several rounds as one: the median of each of its figures.
DpRow median_of(const std::vector<DpRow>& rounds);

}  // namespace lockstep::bench
