// SPDX-License-Identifier: BSD-3-Clause
// Checks the user's batch sizes and derives the missing ones.
#include "tools/recipes/batch_size.h"

#include <fmt/format.h>

#include "lockstep/core/error.h"

namespace lockstep {

BatchSizes resolve_batch_sizes(std::optional<std::int64_t> rank, std::optional<std::int64_t> global,
                               std::int64_t recipe, int ranks) {
  if (rank && global) {
    throw UsageError(fmt::format(
        "both a rank's batch size ({}) and a global one ({}) are given; give one of them", *rank,
        *global));
  }
  if (global) {
    if (*global < 1 || *global % ranks != 0) {
      throw UsageError(fmt::format(
          "the global batch size {} is not a multiple of the number of ranks, {}; give a "
          "positive multiple of {}",
          *global, ranks, ranks));
    }
    return {*global / ranks, *global};
  }
  const std::int64_t size = rank.value_or(recipe);
  if (size < 1) {
    throw UsageError(fmt::format("the batch size {} is not positive; give at least 1", size));
  }
  return {size, size * ranks};
}

}  // namespace lockstep
