// SPDX-License-Identifier: BSD-3-Clause
// Warns of ranks that draw the same random numbers.
#include <fmt/format.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/backward_reduction.h"

namespace lockstep {

void BackwardReduction::warn_of_equal_draws(std::int64_t root_draw) {
  // Only rank 1 warns, to avoid a warning from each rank.
  const bool compares_with_rank_zero = group_->rank() == 1 && root_ == 0;
  if (!compares_with_rank_zero || first_draw_ == 0 || first_draw_ != root_draw) return;
  libtorch::warn("forward",
                 where() +
                     "forward drew the same random numbers as on rank 0, so that both drop "
                     "the same elements. Seed the ranks differently: "
                     "lockstep::seed_everything(seed, group)");
}

}  // namespace lockstep
