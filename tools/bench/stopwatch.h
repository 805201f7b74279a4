// SPDX-License-Identifier: BSD-3-Clause
// How long the slowest rank took.
#pragma once

#include <chrono>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

// Seconds that the function takes.
template <class Function>
double seconds_of(Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The same on this rank, when all ranks start at once.
template <class Function>
double seconds_of(ProcessGroup& group, Function&& function) {
  group.barrier().wait();
  return seconds_of(function);
}

// Each measurement becomes that of the rank where it was longest. A collective call, with as many
// measurements on every rank.
std::vector<double> slowest_of_ranks(ProcessGroup& group, std::vector<double> seconds);

}  // namespace lockstep::bench
