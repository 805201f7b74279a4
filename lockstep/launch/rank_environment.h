// SPDX-License-Identifier: BSD-3-Clause
// What a launch gives each of its ranks: the environment variables that identify it, a number of
// threads, and the cores that it is pinned to (docs/decisions/0003-pin-only-whole-machines.md).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// One of several machines whose launchers start the ranks of one job, the same number on each.
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
  // Distinguishes this job from others; the same in all its attempts.
  std::string run_id;
  // The number of this attempt at the job, from 0, and of the last one that may follow.
  int restart_count = 0;
  int max_restarts = 0;
  // The socket path of the launcher's own store. Ranks on several machines do not rendezvous in it.
  std::string store;
  // If empty, this machine is the only one.
  std::optional<Node> node{};
};

// The variables that tell a rank of this machine which one it is: torchrun's; LOCKSTEP_STORE, the
// store for rendezvous; and LOCKSTEP_LAUNCHER, the store in which ranks report losses.
EnvironmentVariables rank_environment(const LaunchFacts& facts, int local_rank);

// A member of an elastic job that is started.
struct StartedMember {
  int member = 0;
  int place = 0;
  // MAX of --elastic.
  int most = 1;
  bool newcomer = false;
  // The path of its launcher's ElasticBoard.
  std::string board{};
};

// The variables that ElasticJob reads. A newcomer is alone until it joins, so it gets RANK=0 and
// WORLD_SIZE=1.
EnvironmentVariables member_environment(const StartedMember& started);

// A TCP port of 127.0.0.1 that is free at this moment.
int free_port();

// The number of threads that each rank uses: `threads` if given, else OMP_NUM_THREADS, else an
// equal share of this process's cores.
int threads_per_rank(int ranks, std::optional<int> threads);

// OMP_NUM_THREADS and OPENBLAS_NUM_THREADS with the number of threads per rank. Without `threads`,
// leaves out variables that the environment sets.
EnvironmentVariables thread_environment(int ranks, std::optional<int> threads);

// Splits the cores evenly among the ranks, in order. nullopt for a single rank, or if the ranks'
// threads need more cores or fewer.
std::optional<std::vector<std::vector<int>>> split_cores(const std::vector<int>& cores, int ranks,
                                                         int threads_per_rank);

// Decides which job may pin its ranks: two jobs pinned to the same cores would share them even
// while other cores are idle. Holds cores of this machine until it is destroyed or the process
// ends. A claim is an abstract Unix socket: it leaves nothing behind, and all processes of one
// network namespace see it. Containers with their own networks do not see each other's claims. So
// only a job that would use all of its allowed cores should claim and pin: two such jobs share
// cores with or without pinning.
class CoreClaim {
 public:
  // Claims all of the cores, or none if one is taken.
  explicit CoreClaim(const std::vector<int>& cores);

  bool held() const { return !sockets_.empty(); }

 private:
  std::vector<UniqueFd> sockets_;
};

// The shares of one launch. The cores stay claimed while this object lives.
class CoreShares {
 public:
  CoreShares(int ranks, int threads_per_rank);

  // Pins the calling process to its rank's cores, if the launch could claim them. A rank by which
  // an elastic job has grown has none.
  void pin(int rank) const;

 private:
  std::vector<std::vector<int>> shares_;  // empty if no rank is pinned
  std::optional<CoreClaim> claim_;
};

}  // namespace lockstep
