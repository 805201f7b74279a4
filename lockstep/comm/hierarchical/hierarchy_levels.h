// SPDX-License-Identifier: BSD-3-Clause
// The groups of which a hierarchical one is made.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/hierarchical/host_map.h"
#include "lockstep/comm/core/backend.h"

namespace lockstep {

// What a rank is part of. Two groups of the same ranks within the host, since each phase needs an
// order of its own.
struct HierarchyLevels {
  std::shared_ptr<Backend> all;
  std::shared_ptr<Backend> reducing;
  std::shared_ptr<Backend> sharing;
  // The ranks at this place on their hosts; null on a host that has more ranks than another.
  std::shared_ptr<Backend> between_hosts;
  HostMap hosts;
  int host = 0;
  // This rank's place on its host.
  int index = 0;
  // As many as the smallest host has ranks.
  int slices = 1;
  std::chrono::milliseconds timeout = {};

  // The ranks of this host, and those between hosts, by their numbers in `all`.
  const std::vector<int>& ranks_of_host() const { return hosts[static_cast<std::size_t>(host)]; }
  std::vector<int> ranks_between_hosts() const;
};

// Joins the ranks within each host, and across hosts, of a group of all that is there already. A
// collective call, blocking.
HierarchyLevels join_levels(const Membership& membership, const GroupOptions& options,
                            const std::string& host, std::shared_ptr<Backend> all);

// Aborts all the groups.
void end_groups(HierarchyLevels& levels, const std::string& reason);
// Aborts all the groups with a UsageError on every rank, since ranks make different calls.
void end_groups_for_mismatch(HierarchyLevels& levels, const std::string& reason);

}  // namespace lockstep
