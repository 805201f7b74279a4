// SPDX-License-Identifier: BSD-3-Clause
// What DataParallel gains on this machine's cores: a training step in one thread, in several
// intra-op threads, and in as many replicas, on the same batch.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/bench/training.h"

namespace lockstep::bench {

struct DpRow {
  // 1 is the bare model.
  int replicas = 1;
  int threads = 1;
  double us_p10 = 0;
  double us_median = 0;
  double us_p90 = 0;

  std::string_view mode() const { return replicas == 1 ? "single" : "dp"; }
};

// What there is to compare, without times: one thread, so many threads, so many replicas.
std::vector<DpRow> dp_rows(int replicas);

// Trains for about a second, and returns the row with its times. For a process that does nothing
// else and has the row's threads: libraries' own threads go on looking for work after they had
// some, and disturb what comes next.
DpRow measure_dp(const TrainingStep& step, DpRow row);

// The rows of several rounds as one: the median of each of its figures.
DpRow median_of(const std::vector<DpRow>& rounds);

}  // namespace lockstep::bench
