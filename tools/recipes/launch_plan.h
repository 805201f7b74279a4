// SPDX-License-Identifier: BSD-3-Clause
// Where a training runs: in this process, as a rank of a launcher or on ranks of its own, and on
// which devices.
#pragma once

#include <optional>
#include <string>

#include <c10/core/Device.h>

#include "lockstep/train/trainer_options.h"

namespace lockstep {

struct LaunchRequest {
  // The options of the user. For dp, `ranks` counts replicas.
  TrainingMode mode = TrainingMode::automatic;
  std::optional<int> ranks = {};
  // WORLD_SIZE, if a launcher has started this process.
  std::optional<int> world_size = {};
  // The number of ranks of dp and ddp without the option.
  int default_ranks = 1;
};

struct LaunchPlan {
  TrainingMode mode;
  int ranks;
  int replicas;
  // If false, this process trains, or is one rank of the run.
  bool start_ranks;
};

// Without a mode, more than one rank means ddp. Under a launcher the run joins it; otherwise
// ddp with more than one rank starts them, and dp runs its replicas in this process. UsageError for
// options that contradict each other or the launcher.
LaunchPlan plan_launch(const LaunchRequest& request);

// Returns the intra-op threads of a process, which its replicas share equally. With fewer than two
// cores per replica it is one: the replicas fill the cores, and the work between them is too short
// for waking threads.
int threads_for_replicas(int cores, int replicas);

// Reads --device: "cpu", "cuda:2", or "cuda", the GPU of this local rank; nullopt without a text,
// which leaves the choice to init_process_group. UsageError for other texts, and for a missing GPU.
std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank);

// For a machine with `gpus` GPUs.
std::optional<at::Device> choose_device(const std::optional<std::string>& text, int local_rank,
                                        int gpus);

// Returns the number of GPUs that libtorch can use; 0 if it was built without CUDA.
int usable_gpus();

}  // namespace lockstep
