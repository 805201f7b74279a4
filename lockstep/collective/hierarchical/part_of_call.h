// SPDX-License-Identifier: BSD-3-Clause
// A work on one of the groups of which a hierarchical group is made, as part of a call of that.
#pragma once

#include <chrono>
#include <vector>

#include "lockstep/collective/call.h"
#include "lockstep/collective/work.h"

namespace lockstep {

// Where it throws CallsDiffer, that names the peer by its rank in the hierarchical group, and calls
// by their numbers there: `ranks` has them for the work's group, and ranks that have agreed so far
// give a call the same number.
Work part_of_call(Work work, std::chrono::milliseconds timeout, std::vector<int> ranks,
                  const Call& whole);

}  // namespace lockstep
