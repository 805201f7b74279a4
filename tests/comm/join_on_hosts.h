// SPDX-License-Identifier: BSD-3-Clause
// Ranks that take one host for several.
#pragma once

#include <memory>

#include "support/group_by.h"
#include "support/join.h"
#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep::testing {

// `host` is the number of this rank's host.
inline std::shared_ptr<ProcessGroup> join_on_hosts(Rank& rank, const JoinOptions& options,
                                                   JoinHosts join_hosts, int host) {
  Membership member = rendezvous({.init_method = rank.rendezvous_url(options.key),
                                  .rank = rank.rank(),
                                  .world_size = rank.size(),
                                  .timeout = options.timeout});
  return group_by(make_hierarchical_backend, std::move(member),
                  {.timeout = options.timeout, .device = options.device.value_or(at::kCPU)},
                  fmt::format("host {}", host), join_hosts);
}

// Two ranks a host: of three ranks the sums are those of ranks in order.
inline std::shared_ptr<ProcessGroup> join_on_hosts(Rank& rank, const JoinOptions& options,
                                                   JoinHosts join_hosts) {
  return join_on_hosts(rank, options, join_hosts, rank.rank() / 2);
}

}  // namespace lockstep::testing
