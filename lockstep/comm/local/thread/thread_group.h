// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are threads of one process. They reduce tensors where they lie, whoever made them.
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// One group object for each rank, in the order of the ranks; each is for one thread. A rank whose
// object is destroyed has left the group. UsageError if size is less than 1.
std::vector<std::shared_ptr<ProcessGroup>> make_thread_groups(int size, GroupOptions options = {});

}  // namespace lockstep
