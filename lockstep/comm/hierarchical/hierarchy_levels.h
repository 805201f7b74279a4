// SPDX-License-Identifier: BSD-3-Clause
// The groups that make up a hierarchical group.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/core/backend.h"
#include "lockstep/rendezvous/exchange.h"

namespace lockstep::hierarchical {

// The groups of one rank. Two of them consist of the ranks of its host, since each phase needs its
// own order.
struct HierarchyLevels {
  std::shared_ptr<Backend> all;
  std::shared_ptr<Backend> reducing;
  std::shared_ptr<Backend> sharing;
  // The ranks with this index on their hosts; null if the smallest host has no such rank.
  std::shared_ptr<Backend> between_hosts;
  HostMap hosts;
  int host = 0;
  // This rank's index among the ranks of its host.
  int index = 0;
  // The number of ranks on the smallest host.
  int slices = 1;
  std::chrono::milliseconds timeout = {};

  // The ranks of this host, and those of between_hosts, by their numbers in `all`.
  const std::vector<int>& ranks_of_host() const { return hosts[static_cast<std::size_t>(host)]; }
  std::vector<int> ranks_between_hosts() const;
  // Whether all hosts have the same number of ranks.
  bool hosts_are_alike() const;
};

// Joins the ranks within each host and across hosts; they have joined `all` already. A blocking
// collective call.
HierarchyLevels join_levels(const Membership& membership, const GroupOptions& options,
                            const std::string& host, std::shared_ptr<Backend> all);

// Tells the peers in all the groups that an exception ends this rank.
void leave_groups_failing(const HierarchyLevels& levels, const std::string& reason);
// Aborts all the groups.
void end_groups(HierarchyLevels& levels, const std::string& reason);

}  // namespace lockstep::hierarchical
