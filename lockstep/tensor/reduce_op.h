// SPDX-License-Identifier: BSD-3-Clause
// Public. How the elements of the ranks are combined into one.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

// sum must be 0: all_reduce(tensor, {}) selects the overload for a ReduceOp and passes 0, but the
// caller means the default.
enum class ReduceOp : std::uint8_t { sum = 0, mean, min, max, product };

std::string_view name(ReduceOp op);

// The factor to multiply the combined elements by: `scale`, for a mean divided by the number of
// ranks.
inline double scale_over(int ranks, ReduceOp op, double scale) {
  return op == ReduceOp::mean ? scale / ranks : scale;
}

// How all_reduce moves and combines the elements.
enum class Algorithm : std::uint8_t {
  // The backend's best way.
  automatic,
  // Reduce-scatter and all-gather around a ring, over send and recv with the two neighbours: each
  // rank sends 2 (N - 1) / N of the tensor, however many ranks there are (Patarasuk and Yuan,
  // 2009). The sum of element i begins at a rank that depends on i, and half types are rounded at
  // each hop.
  ring,
};

std::string_view name(Algorithm algorithm);

// Calls that reduce also take an operation alone: all_reduce(tensor, ReduceOp::mean).
struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  // Used only by all_reduce.
  Algorithm algorithm = Algorithm::automatic;
  // A factor for the result, applied in the same pass. Only for sums and means of floating and
  // complex types.
  double scale = 1;
};

}  // namespace lockstep
