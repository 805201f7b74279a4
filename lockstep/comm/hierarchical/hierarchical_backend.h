// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks on several hosts. An all-reduce has three phases. Within each host, the
// ranks reduce the tensor in shared memory, one slice per rank. Each rank then reduces its slice
// with its peers on the other hosts, which sends 2 (H - 1) / H of the tensor from each of H hosts.
// Finally, the ranks of each host share the slices. Broadcasts go the same way. If all hosts have
// the same number of ranks, so do all-gather and reduce-scatter (parts_of_ranks.h). All other calls
// use a group of all ranks.
//
// Sums are taken within the hosts first. Every rank has the same bits, but not the bits of a group
// that adds in rank order.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Joins the ranks of different hosts: make_gloo_backend or another. Messages use the name.
using JoinHosts = std::shared_ptr<Backend> (*)(const Membership& membership,
                                               const GroupOptions& options,
                                               const std::string& name);

// Blocks until all ranks have joined. `host` identifies the host, as this_host() does.
std::shared_ptr<Backend> make_hierarchical_backend(const Membership& membership,
                                                   const GroupOptions& options,
                                                   const std::string& host, JoinHosts join_hosts);

}  // namespace lockstep
