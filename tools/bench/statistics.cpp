// SPDX-License-Identifier: BSD-3-Clause
// Sorts a copy and picks the nearest rank.
#include "tools/bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::bench {

double quantile(std::span<const double> measurements, double part) {
  std::vector<double> sorted(measurements.begin(), measurements.end());
  std::ranges::sort(sorted);
  return sorted[static_cast<std::size_t>(
      std::lround(part * static_cast<double>(sorted.size() - 1)))];
}

}  // namespace lockstep::bench
