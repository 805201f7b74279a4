// SPDX-License-Identifier: BSD-3-Clause
// How many samples a step takes: on a rank, and on all of them together.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/number.h"

namespace lockstep {

// A step's samples, on each of as many ranks as there can be, still fit an std::int64_t.
constexpr Range<std::int64_t> kBatchSizes{1, 1'000'000'000};
constexpr Range<std::int64_t> kGlobalBatchSizes{1, 100'000'000'000'000};

struct BatchSizes {
  std::int64_t rank;
  std::int64_t global;  // rank * number of ranks
};

// From what the user gave: a rank's batch size, the global one, or neither, which means the
// recipe's on each rank. UsageError if both are given, if one is not positive, or if the global one
// is not divided by the number of ranks.
BatchSizes resolve_batch_sizes(std::optional<std::int64_t> rank, std::optional<std::int64_t> global,
                               std::int64_t recipe, int ranks);

}  // namespace lockstep
