// SPDX-License-Identifier: BSD-3-Clause
// Reduces measurements to the maximum over the ranks.
#include "tools/bench/stopwatch.h"

#include <ATen/Functions.h>

namespace lockstep::bench {

std::vector<double> slowest_of_ranks(ProcessGroup& group, std::vector<double> seconds) {
  const auto tensor = at::from_blob(seconds.data(), {static_cast<std::int64_t>(seconds.size())},
                                    at::TensorOptions().dtype(at::kDouble));
  group.all_reduce(tensor, ReduceOp::max).wait();
  return seconds;
}

}  // namespace lockstep::bench
