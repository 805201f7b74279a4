// SPDX-License-Identifier: BSD-3-Clause
// Measures the time of the slowest rank.
#pragma once

#include <chrono>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

// The function's time in seconds.
template <class Function>
double seconds_of(Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The same on this rank, with a simultaneous start on all ranks.
template <class Function>
double seconds_of(ProcessGroup& group, Function&& function) {
  group.barrier().wait();
  return seconds_of(function);
}

// Replaces each measurement by that of the slowest rank. Collective, with equally many measurements
// on every rank.
std::vector<double> slowest_of_ranks(ProcessGroup& group, std::vector<double> seconds);

}  // namespace lockstep::bench
