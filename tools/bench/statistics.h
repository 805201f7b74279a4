// SPDX-License-Identifier: BSD-3-Clause
// Quantiles of repeated measurements.
#pragma once

#include <span>

namespace lockstep::bench {

// The measurement that the fraction `part` of all measurements does not exceed: 0 is the least, 0.5
// the median. Needs at least one measurement.
double quantile(std::span<const double> measurements, double part);

inline double median(std::span<const double> measurements) {
  return quantile(measurements, 0.5);
}

}  // namespace lockstep::bench
