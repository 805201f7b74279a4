// SPDX-License-Identifier: BSD-3-Clause
// How a process becomes a rank, as torch.distributed.init_process_group.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/collective/process_group.h"

namespace lockstep {

struct InitOptions {
  // "shm", or "auto", which takes the fastest one that joins these ranks.
  std::string backend = "auto";
  // "env://" reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; with none of them set
  // the process is a group of one. "tcp://host:port" (rank 0 listens there) and "file:///path"
  // (a file that does not exist yet) take rank and world_size from these options, else from RANK
  // and WORLD_SIZE.
  std::string init_method = "env://";
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  // For joining, and for every wait of the group.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  // Where this rank's tensors live; without it cuda:LOCAL_RANK if there is a GPU, else cpu.
  std::optional<at::Device> device = {};
};

// Blocks until all ranks have joined. UsageError for options or an environment that contradict
// themselves; TimeoutError names the rank that did not come. The group's destruction leaves the
// group and never hangs; there is no destroy_process_group.
std::shared_ptr<ProcessGroup> init_process_group(const InitOptions& options = {});

}  // namespace lockstep
