// SPDX-License-Identifier: BSD-3-Clause
// Groups whose ranks are all in this process: one rank, or threads.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A group of this process alone.
std::shared_ptr<ProcessGroup> make_self_group(GroupOptions options = {});

// One group object per rank, in rank order, each for use by one thread. A rank leaves the group
// when its object is destroyed. UsageError if size is less than 1. TORCH_WARN, once, if it exceeds
// the cores.
std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, GroupOptions options = {});

}  // namespace lockstep
