// SPDX-License-Identifier: BSD-3-Clause
// Work on one of the groups that make up a hierarchical group, as part of one of its calls.
#pragma once

#include <chrono>
#include <vector>

#include "lockstep/collective/call.h"
#include "lockstep/collective/work.h"

namespace lockstep {

// Its CallsDiffer names the peer by its rank in the hierarchical group, and calls by their numbers
// there. `ranks` has those ranks for the work's group; ranks that have agreed so far give a call
// the same number.
Work part_of_call(Work work, std::chrono::milliseconds timeout, std::vector<int> ranks,
                  const Call& whole);

}  // namespace lockstep
