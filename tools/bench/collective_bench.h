// SPDX-License-Identifier: BSD-3-Clause
// Measures the speed of a group's collectives, reported as by nccl-tests, and against a memory
// bound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/process_group.h"

namespace lockstep::bench {

struct CollectiveBench {
  // all_reduce, all_gather, broadcast or reduce_scatter.
  Collective collective = Collective::all_reduce;
  at::ScalarType type = at::kFloat;
  ReduceOp op = ReduceOp::sum;
  Algorithm algorithm = Algorithm::automatic;
  // Whether the tensors come from group.empty; otherwise they are ordinary tensors.
  bool from_group = true;
};

struct CollectiveRow {
  // Size of the tensor that is reduced or sent; of all ranks' parts together for all_gather and
  // reduce_scatter, as in nccl-tests.
  std::int64_t bytes = 0;
  // The time from the common start of all ranks until the last one has its result.
  double time_us_min = 0;
  double time_us_median = 0;
  // algbw is bytes divided by the median time; busbw is algbw times the share that a ring's link
  // carries, 2 (N - 1) / N for all_reduce. In 10^9 bytes per second.
  double algbw_gb_s = 0;
  double busbw_gb_s = 0;
  // Wrong elements, summed over all ranks.
  std::int64_t wrong = 0;
  // The time that the collective's reads and writes would take at the triad's rate, in percent of
  // the median time. The triad uses buffers of the same total size on the same cores, and
  // alternates with the collective. nullopt for one rank, which moves nothing.
  std::optional<double> percent_of_bound;
};

// UsageError for types and operations that no group accepts. Call it before ranks start.
void check(const CollectiveBench& bench);

// Collective, with the same arguments on every rank; blocks for about a second. Rounds the bytes
// down to whole elements for each rank. Rewrites tensors before each measurement. UsageError for
// arguments that the group refuses.
CollectiveRow measure(ProcessGroup& group, const CollectiveBench& bench, std::int64_t bytes);

// Returns the minimum number of bytes that the ranks together read and write.
double least_traffic(Collective collective, int ranks, double bytes);

// Returns the ratio of busbw to algbw.
double bus_factor(Collective collective, int ranks);

}  // namespace lockstep::bench
