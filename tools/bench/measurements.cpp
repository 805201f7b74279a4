// SPDX-License-Identifier: BSD-3-Clause
// Takes the maximum over the ranks, and picks quantiles by the nearest rank.
#include "tools/bench/measurements.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include <ATen/Functions.h>

namespace lockstep::bench {

std::vector<double> slowest_of_ranks(ProcessGroup& group, std::vector<double> seconds) {
  const auto tensor = at::from_blob(seconds.data(), {static_cast<std::int64_t>(seconds.size())},
                                    at::TensorOptions().dtype(at::kDouble));
  group.all_reduce(tensor, ReduceOp::max).wait();
  return seconds;
}

double quantile(std::span<const double> measurements, double part) {
  std::vector<double> sorted(measurements.begin(), measurements.end());
  std::ranges::sort(sorted);
  return sorted[static_cast<std::size_t>(
      std::lround(part * static_cast<double>(sorted.size() - 1)))];
}

}  // namespace lockstep::bench
