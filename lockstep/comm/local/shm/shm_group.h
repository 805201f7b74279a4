// SPDX-License-Identifier: BSD-3-Clause
// Ranks of one machine, joined through memory that all of them map.
#pragma once

#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Blocks until all ranks have joined, for options.timeout at most.
std::shared_ptr<ProcessGroup> make_shm_group(Membership membership, GroupOptions options);

}  // namespace lockstep
