// SPDX-License-Identifier: BSD-3-Clause
// The environment variables that tell a rank which it is: torchrun's; LOCKSTEP_STORE, the store for
// rendezvous; and LOCKSTEP_LAUNCHER, the store in which ranks report losses.
#pragma once

#include <optional>
#include <string>

#include "lockstep/core/environment.h"

namespace lockstep {

// One of several machines whose launchers start the ranks of one job, equally many on each.
struct Node {
  int number = 0;
  int nodes = 2;
  // Where rank 0 serves the store for rendezvous: a host name or address of the first machine, and
  // a port that is free there.
  std::string host{};
  int port = 0;
};

// The facts that all ranks of a launch share.
struct LaunchFacts {
  // On this machine.
  int ranks = 1;
  // The port for rank 0's c10d store.
  int master_port = 0;
  // Distinguishes this launch from others.
  std::string run_id;
  // The socket path of the launcher's own store. Ranks on several machines do not rendezvous in it.
  std::string store;
  // If empty, this machine is the only one.
  std::optional<Node> node{};
};

// The variables of one rank of this machine.
EnvironmentVariables rank_environment(const LaunchFacts& facts, int local_rank);

// A TCP port of 127.0.0.1 that is free at this moment.
int free_port();

}  // namespace lockstep
