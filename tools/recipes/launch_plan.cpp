// SPDX-License-Identifier: BSD-3-Clause
// Derives mode, ranks and replicas from the options and the launcher.
#include "tools/recipes/launch_plan.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

namespace {

// The replicas run in this process, whoever started it.
LaunchPlan plan_replicas(const LaunchRequest& request) {
  if (request.world_size.value_or(1) > 1) {
    throw UsageError(
        fmt::format("--mode dp runs as one rank, but WORLD_SIZE={}; use --mode ddp, or start "
                    "without the launcher",
                    *request.world_size));
  }
  return {TrainMode::dp, 1, request.ranks.value_or(request.default_ranks), false};
}

}  // namespace

LaunchPlan plan_launch(const LaunchRequest& request) {
  if (request.ranks && *request.ranks < 1) {
    throw UsageError(fmt::format("--ranks {}: give at least 1", *request.ranks));
  }
  if (request.mode == TrainMode::dp) return plan_replicas(request);
  if (request.ranks && request.world_size && *request.ranks != *request.world_size) {
    throw UsageError(
        fmt::format("--ranks {} contradicts WORLD_SIZE={} of the launcher that started this "
                    "process; leave out --ranks, or start without the launcher",
                    *request.ranks, *request.world_size));
  }
  const auto given = request.world_size ? request.world_size : request.ranks;
  const TrainMode mode =
      request.mode.value_or(given.value_or(1) > 1 ? TrainMode::ddp : TrainMode::single);
  if (mode == TrainMode::single && given.value_or(1) > 1) {
    throw UsageError(fmt::format("--mode single runs as one rank; {}{} needs --mode ddp",
                                 request.world_size ? "WORLD_SIZE=" : "--ranks ", *given));
  }
  const int ranks = given.value_or(mode == TrainMode::ddp ? request.default_ranks : 1);
  return {mode, ranks, 1, !request.world_size && ranks > 1};
}

int threads_for_replicas(int cores, int replicas) {
  return cores < 2 * replicas ? 1 : cores / replicas * replicas;
}

}  // namespace lockstep
