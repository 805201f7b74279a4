// SPDX-License-Identifier: BSD-3-Clause
// Resolves the number of samples per step: per rank and in total.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/number.h"

namespace lockstep {

// Chosen so that a step's samples, over the greatest number of ranks, fit an std::int64_t.
constexpr Range<std::int64_t> kBatchSizes{1, 1'000'000'000};
constexpr Range<std::int64_t> kGlobalBatchSizes{1, 100'000'000'000'000};

struct BatchSizes {
  std::int64_t rank;
  std::int64_t global;  // rank * number of ranks
};

// Resolves the user's batch size per rank, or the global one, or neither, which means the recipe's
// on each rank. UsageError if both are given, if one is not positive, or if the global one is not
// divisible by the number of ranks.
BatchSizes resolve_batch_sizes(std::optional<std::int64_t> rank, std::optional<std::int64_t> global,
                               std::int64_t recipe, int ranks);

}  // namespace lockstep
