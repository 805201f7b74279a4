// SPDX-License-Identifier: BSD-3-Clause
// How a test's rank becomes a member of a process group.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "support/rank_processes.h"

#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {

struct JoinOptions {
  std::string backend = "auto";
  std::chrono::milliseconds timeout = std::chrono::seconds(30);
  // Each group of a launch has a rendezvous of its own.
  std::string key = "group";
  // Of the rank's tensors; a GPU if there is one.
  std::optional<at::Device> device = {};
};

inline std::shared_ptr<ProcessGroup> join(Rank& rank, const JoinOptions& options = {}) {
  InitOptions init;
  init.backend = options.backend;
  init.init_method = rank.rendezvous_url(options.key);
  init.rank = rank.rank();
  init.world_size = rank.size();
  init.timeout = options.timeout;
  init.device = options.device;
  return init_process_group(init);
}

}  // namespace lockstep::testing
