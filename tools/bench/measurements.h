// SPDX-License-Identifier: BSD-3-Clause
// Repeated measurements of time: on one rank, on the slowest rank, and their quantiles.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

// Returns the function's time in seconds.
template <class Function>
double seconds_of(Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns the function's time on this rank, with a simultaneous start on all ranks.
template <class Function>
double seconds_of(ProcessGroup& group, Function&& function) {
  group.barrier().wait();
  return seconds_of(function);
}

// Replaces each measurement by the measurement of the slowest rank. Collective, with the same
// number of measurements on every rank.
std::vector<double> slowest_of_ranks(ProcessGroup& group, std::vector<double> seconds);

// Returns the measurement that the fraction `part` of all measurements does not exceed: 0 is the
// least, 0.5 the median. Needs at least one measurement.
double quantile(std::span<const double> measurements, double part);

inline double median(std::span<const double> measurements) {
  return quantile(measurements, 0.5);
}

}  // namespace lockstep::bench
