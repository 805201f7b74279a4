// SPDX-License-Identifier: BSD-3-Clause
// How the ranks of a launch share this machine's cores: the threads of each rank, and whether ranks
// are pinned, and to which cores (docs/decisions/0003-pin-only-whole-machines.md).
#pragma once

#include <optional>
#include <vector>

#include "lockstep/core/environment.h"
#include "lockstep/core/process/core_claim.h"

namespace lockstep {

// The number of threads that each rank uses: `threads` if given, else OMP_NUM_THREADS, else an
// equal share of this process's cores.
int threads_per_rank(int ranks, std::optional<int> threads);

// OMP_NUM_THREADS and OPENBLAS_NUM_THREADS for that number. Without `threads`, only those that the
// environment does not set.
EnvironmentVariables thread_environment(int ranks, std::optional<int> threads);

// Splits the cores evenly among the ranks, in order. nullopt for a single rank, or if the ranks'
// threads need more cores or fewer.
std::optional<std::vector<std::vector<int>>> split_cores(const std::vector<int>& cores, int ranks,
                                                         int threads_per_rank);

// The shares of one launch. The cores stay claimed while this object lives.
class CoreShares {
 public:
  CoreShares(int ranks, int threads_per_rank);

  // Pins the calling process to its rank's cores, if the launch could claim them.
  void pin(int rank) const;

 private:
  std::vector<std::vector<int>> shares_;  // empty if no rank is pinned
  std::optional<CoreClaim> claim_;
};

}  // namespace lockstep
