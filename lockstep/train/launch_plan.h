// SPDX-License-Identifier: BSD-3-Clause
// Whether a training runs in this process, joins the ranks of a launcher, or starts its own.
#pragma once

#include <optional>

#include "lockstep/train/train.h"

namespace lockstep {

struct LaunchRequest {
  // What the user gave.
  std::optional<TrainMode> mode = {};
  std::optional<int> ranks = {};
  // WORLD_SIZE, if a launcher has started this process.
  std::optional<int> world_size = {};
  // How many ranks to start if nobody says.
  int default_ranks = 1;
};

struct LaunchPlan {
  TrainMode mode;
  int ranks;
  // False: this process is the training, or one rank of it.
  bool start_ranks;
};

// Without a mode, more than one rank means ddp. Under a launcher the training joins it; otherwise
// ddp with more than one rank starts them. UsageError for what contradicts itself or the launcher.
LaunchPlan plan_launch(const LaunchRequest& request);

}  // namespace lockstep
