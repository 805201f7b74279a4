// SPDX-License-Identifier: BSD-3-Clause
// The environment variables by which a rank learns who it is: torchrun's, LOCKSTEP_STORE
// where the ranks meet in the launcher's store, and LOCKSTEP_LAUNCHER, where they tell it whom they
// lost.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

// One of several machines whose launchers start the ranks of one job, as many on each.
struct Node {
  int number = 0;
  int nodes = 2;
  // Where rank 0 serves the store in which all ranks meet, a host name or address of
  // the first one and a port that is free there.
  std::string host{};
  int port = 0;
};

// What all ranks of a launch have in common.
struct LaunchFacts {
  // On this machine.
  int ranks = 1;
  // Where the c10d store of rank 0 shall listen.
  int master_port = 0;
  // Names this launch among others.
  std::string run_id;
  // The launcher's own store: the path of its socket. Ranks on several machines do not meet in it.
  std::string store;
  // Without it, this machine is the only one.
  std::optional<Node> node{};
};

// The variables of the rank with this number on this machine.
EnvironmentVariables rank_environment(const LaunchFacts& facts, int local_rank);

// How many threads each rank uses: the number if it is given, else OMP_NUM_THREADS, else this
// process's share of the cores among so many ranks.
int threads_per_rank(int ranks, std::optional<int> threads);

// OMP_NUM_THREADS and OPENBLAS_NUM_THREADS for that number, where the environment does not say.
EnvironmentVariables thread_environment(int ranks, std::optional<int> threads);

// A TCP port of 127.0.0.1 that nobody listens on at this moment.
int free_port();

}  // namespace lockstep
