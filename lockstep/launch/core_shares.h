// SPDX-License-Identifier: BSD-3-Clause
// Which cores each rank of a launch is pinned to, if any
// (docs/decisions/0003-pin-only-whole-machines.md).
#pragma once

#include <optional>
#include <vector>

#include "lockstep/core/core_claim.h"

namespace lockstep {

// Splits the cores evenly among the ranks, in order; nothing if they do not all get what they use,
// or if the ranks leave some idle.
std::optional<std::vector<std::vector<int>>> split_cores(const std::vector<int>& cores, int ranks,
                                                         int threads_per_rank);

// The shares of one launch. The cores are claimed as long as it lives.
class CoreShares {
 public:
  CoreShares(int ranks, int threads_per_rank);

  // Lets the calling process run on its rank's cores alone, if the launch could claim them.
  void pin(int rank) const;

 private:
  std::vector<std::vector<int>> shares_;  // empty if nobody is pinned
  std::optional<CoreClaim> claim_;
};

}  // namespace lockstep
