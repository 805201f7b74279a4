// SPDX-License-Identifier: BSD-3-Clause
// What is told of many measurements of the same thing.
#pragma once

#include <span>

namespace lockstep::bench {

// The measurement that this part of the others, from 0 to 1, does not exceed: 0 is the least, 0.5
// the median. There must be at least one.
double quantile(std::span<const double> measurements, double part);

inline double median(std::span<const double> measurements) {
  return quantile(measurements, 0.5);
}

}  // namespace lockstep::bench
