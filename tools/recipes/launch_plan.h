// SPDX-License-Identifier: BSD-3-Clause
// Decides whether a training runs in this process, joins a launcher's ranks, or starts its own.
#pragma once

#include <optional>

#include "tools/recipes/train.h"

namespace lockstep {

struct LaunchRequest {
  // The user's options. For dp, `ranks` counts replicas.
  std::optional<TrainMode> mode = {};
  std::optional<int> ranks = {};
  // WORLD_SIZE, if a launcher has started this process.
  std::optional<int> world_size = {};
  // The number of ranks of dp and ddp if none is given.
  int default_ranks = 1;
};

struct LaunchPlan {
  TrainMode mode;
  int ranks;
  int replicas;
  // False: this process trains, or is one rank of the run.
  bool start_ranks;
};

// Without a mode, more than one rank means ddp. Under a launcher the run joins it; otherwise
// ddp with more than one rank starts them, and dp runs its replicas in this process. UsageError for
// options that contradict each other or the launcher.
LaunchPlan plan_launch(const LaunchRequest& request);

// The intra-op threads of a process with that many replicas, which share them equally. With fewer
// than two cores per replica it is one: the replicas fill the cores, and the work between them is
// too short for waking threads.
int threads_for_replicas(int cores, int replicas);

}  // namespace lockstep
