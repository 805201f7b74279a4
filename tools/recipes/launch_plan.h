// SPDX-License-Identifier: BSD-3-Clause
// Whether a training runs in this process, joins the ranks of a launcher, or starts its own.
#pragma once

#include <optional>

#include "tools/recipes/train.h"

namespace lockstep {

struct LaunchRequest {
  // What the user gave. The ranks of dp are replicas.
  std::optional<TrainMode> mode = {};
  std::optional<int> ranks = {};
  // WORLD_SIZE, if a launcher has started this process.
  std::optional<int> world_size = {};
  // How many there are of dp and ddp if nobody says.
  int default_ranks = 1;
};

struct LaunchPlan {
  TrainMode mode;
  int ranks;
  int replicas;
  // False: this process is the training, or one rank of it.
  bool start_ranks;
};

// Without a mode, more than one rank means ddp. Under a launcher the training joins it; otherwise
// ddp with more than one rank starts them, and dp has its replicas in this process. UsageError for
// what contradicts itself or the launcher.
LaunchPlan plan_launch(const LaunchRequest& request);

// The intra-op threads of a process with so many replicas, each of which takes an equal part of
// them. With a core or less for each it is one: the replicas fill the cores, and what the process
// does between them is too short to wake threads for.
int threads_for_replicas(int cores, int replicas);

}  // namespace lockstep
