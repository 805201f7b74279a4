// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other through the store before they are connected: texts, and their hosts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Collective and blocking, over the membership's store. Returns the text of each rank, in rank
// order. The n-th calls of all ranks on one topic belong together. TimeoutError names a rank that
// did not contribute.
std::vector<std::string> exchange(const Membership& membership, std::string_view topic,
                                  const std::string& text, const Deadline& deadline);

// Identifies this host. Two processes with the same answer can share memory, unless something other
// than a network namespace keeps them apart.
std::string this_host();

// The ranks of each host in ascending order; hosts are in the order of their first ranks.
using HostMap = std::vector<std::vector<int>>;

// Collective and blocking, over the membership's store. `host` identifies this rank's host.
// TimeoutError names a rank that did not contribute.
HostMap map_hosts(const Membership& membership, const std::string& host, const Deadline& deadline);

}  // namespace lockstep
