// SPDX-License-Identifier: BSD-3-Clause
// Which ranks share a host.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Identifies this host. Two processes with the same answer can share memory, unless something other
// than a network namespace keeps them apart.
std::string this_host();

// The ranks of each host in ascending order; hosts are in the order of their first ranks.
using HostMap = std::vector<std::vector<int>>;

// A blocking collective call over the membership's store: each rank says what its host is.
// TimeoutError names a rank that does not.
HostMap map_hosts(const Membership& membership, const std::string& host, const Deadline& deadline);

}  // namespace lockstep
