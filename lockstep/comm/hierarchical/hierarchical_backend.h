// SPDX-License-Identifier: BSD-3-Clause
// The ranks of several hosts. An all-reduce goes through three phases: within each host the tensor
// is reduced in shared memory, a slice a rank; each rank reduces its slice with its peers on the
// other hosts, which takes 2 (H - 1) / H of the tensor out of each of H hosts; and within the host
// the slices are shared. Broadcasts go the same way. All else goes over a group of all ranks.
//
// Sums are taken within the hosts first: every rank has the same bits, but not those of a group
// that adds in the order of the ranks.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Joins the ranks of different hosts under a name for messages: make_gloo_backend or another.
using JoinHosts = std::shared_ptr<Backend> (*)(const Membership& membership,
                                               const GroupOptions& options,
                                               const std::string& name);

// Blocks until all ranks have joined. `host` tells the hosts apart, as this_host() does.
std::shared_ptr<Backend> make_hierarchical_backend(const Membership& membership,
                                                   const GroupOptions& options,
                                                   const std::string& host, JoinHosts join_hosts);

}  // namespace lockstep
