// SPDX-License-Identifier: BSD-3-Clause
// Which ranks share a host.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Tells this host from others: two processes with the same answer can share memory, unless they are
// kept apart by means other than network namespaces.
std::string this_host();

// The ranks of each host in ascending order, the hosts in the order of their first ranks.
using HostMap = std::vector<std::vector<int>>;

// A collective call over the membership's store, blocking: each rank says what its host is.
// TimeoutError names a rank that does not.
HostMap map_hosts(const Membership& membership, const std::string& host, const Deadline& deadline);

}  // namespace lockstep
