// SPDX-License-Identifier: BSD-3-Clause
// Finds a process's rank and the store that connects it to the other ranks.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/rendezvous/membership.h"

namespace lockstep {

struct RendezvousOptions {
  // env://, tcp://host:port or file:///path; see init_process_group.h.
  std::string init_method = "env://";
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// Determines this process's rank and connects it to the ranks' store. Waits at most for rank 0 to
// serve that store; with mpirun, for all ranks. UsageError names what is missing, malformed or
// contradictory. BackendError if mpirun started this process and MPI is not built in, cannot be
// loaded or cannot be started, or if the system refuses what the store needs.
Membership rendezvous(const RendezvousOptions& options);

// The membership that env:// would give this process, without a store and without connecting to
// anything. nullopt if no launcher's variable is set; UsageError as from rendezvous.
std::optional<Membership> membership_in_environment();

}  // namespace lockstep
