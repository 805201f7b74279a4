// SPDX-License-Identifier: BSD-3-Clause
// Tries a process group out.
#pragma once

#include <chrono>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// For the groups that are tried out: a working one needs milliseconds.
constexpr std::chrono::milliseconds trial_timeout = std::chrono::seconds(5);

// Reduces small and large tensors, and one from group.empty, and checks the sums. A collective
// call. Error if a sum is wrong, and the group's own errors.
void try_all_reduce(ProcessGroup& group);

}  // namespace lockstep
