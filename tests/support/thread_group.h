// SPDX-License-Identifier: BSD-3-Clause
// Ranks as threads of one process, for tests of what is built on a ProcessGroup.
#pragma once

#include <functional>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

struct ThreadGroupOptions {
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

// Runs the function once a rank, each on a thread of its own with its own group object, and waits
// for all. If ranks throw, the first one's exception (by rank) is thrown here; gtest's fatal
// assertions end only the rank's function.
void run_rank_threads(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& function,
                      ThreadGroupOptions options = {});

}  // namespace lockstep::testing
