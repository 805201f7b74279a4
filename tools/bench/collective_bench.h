// SPDX-License-Identifier: BSD-3-Clause
// How fast a group's collectives are, told as nccl-tests does, and beside what memory allows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

struct CollectiveBench {
  // all_reduce, all_gather, broadcast or reduce_scatter.
  Collective collective = Collective::all_reduce;
  at::ScalarType type = at::kFloat;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  // Tensors from group.empty, or any.
  bool from_group = true;
};

struct CollectiveRow {
  // Of the tensor that is reduced or sent; of all ranks' parts together for all_gather and
  // reduce_scatter, as in nccl-tests.
  std::int64_t bytes = 0;
  // From the moment when all ranks start to that when the last one has its result.
  double time_us_min = 0;
  double time_us_median = 0;
  // bytes by the median time; and the same times what a link of a ring carries, 2 (N - 1) / N for
  // all_reduce. In 10^9 bytes a second.
  double algbw_gb_s = 0;
  double busbw_gb_s = 0;
  // Elements that were not as they should be, on all ranks.
  std::int64_t wrong = 0;
  // The time that the collective's reads and writes would take at the triad's rate, over buffers of
  // the same total size, on the same cores, measured in turns with it; in percent of the median.
  // Nothing for one rank, which has nothing to move.
  std::optional<double> percent_of_bound;
};

// UsageError for types and operations that no group takes, so that it is known before ranks start.
void check(const CollectiveBench& bench);

// A collective call, with the same arguments on every rank; blocks for about a second. The bytes
// are rounded down to whole elements for each rank. Tensors are written anew before each
// measurement. UsageError for what the group refuses.
CollectiveRow measure(ProcessGroup& group, const CollectiveBench& bench, std::int64_t bytes);

// Bytes that ranks together read and write at least.
double least_traffic(Collective collective, int ranks, double bytes);

// How much busbw is of algbw.
double bus_factor(Collective collective, int ranks);

}  // namespace lockstep::bench
