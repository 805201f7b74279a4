// SPDX-License-Identifier: BSD-3-Clause
// Work on one of the groups that make up a hierarchical group, as part of one of its calls.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/hierarchical/hierarchy_levels.h"
#include "lockstep/comm/types/work.h"

namespace lockstep::hierarchical {

// Starts the work. If it throws CallsDiffer, then or later, the error names the peer by its rank in
// the hierarchical group, and both calls by the number of `whole`: ranks that have agreed so far
// number their calls alike. ranks[i] is the rank in the hierarchical group of rank i of the work's
// group.
Work part_of_call(const std::function<Work()>& start, std::chrono::milliseconds timeout,
                  std::vector<int> ranks, const Call& whole);

// The works of a phase that has only the one that `start` starts: in the group of this host's
// ranks, or in the group of the ranks with this index on their hosts.
std::vector<Work> within_host_part(const HierarchyLevels& levels, const Call& whole,
                                   const std::function<Work()>& start);
std::vector<Work> between_hosts_part(const HierarchyLevels& levels, const Call& whole,
                                     const std::function<Work()>& start);
std::vector<Work> works_of(Work work);

}  // namespace lockstep::hierarchical
