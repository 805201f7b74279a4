// SPDX-License-Identifier: BSD-3-Clause
// Formats lists of ranks for messages.
#pragma once

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {

// "rank 2", "ranks 0 and 1", "ranks 0, 3 and 5".
inline std::string rank_list(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", ranks.front());
  return fmt::format("ranks {} and {}", fmt::join(ranks.begin(), ranks.end() - 1, ", "),
                     ranks.back());
}

}  // namespace lockstep
