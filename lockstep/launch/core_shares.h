// SPDX-License-Identifier: BSD-3-Clause
// Decides whether the ranks of a launch are pinned, and to which cores
// (docs/decisions/0003-pin-only-whole-machines.md).
#pragma once

#include <optional>
#include <vector>

#include "lockstep/core/process/core_claim.h"

namespace lockstep {

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
