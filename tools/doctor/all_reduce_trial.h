// SPDX-License-Identifier: BSD-3-Clause
// Tests a process group.
#pragma once

#include <chrono>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The timeout for test groups: a working one needs milliseconds.
constexpr std::chrono::milliseconds kTrialTimeout = std::chrono::seconds(5);

// Reduces a small and a large tensor and one from group.empty, and checks the sums. Collective.
// Error if a sum is wrong, and the group's own errors.
void try_all_reduce(ProcessGroup& group);

}  // namespace lockstep
