// SPDX-License-Identifier: BSD-3-Clause
// Tensors whose every element is known, so that what a collective makes of them can be checked.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/core/reduce_op.h"

namespace lockstep::bench {

// How elements of a type are reduced.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  at::ScalarType type = at::kFloat;
};

// What a rank holds at a position in a round. Small whole numbers, that differ between neighbours,
// ranks and rounds; of bools, 0 and 1.
double known_element(Reduction reduction, int rank, std::int64_t position, int round);

// What becomes of the ranks' elements; for bools true if it is not 0.
double known_reduction(Reduction reduction, int ranks, std::int64_t position, int round);

using Elements = std::function<double(std::int64_t position)>;

// Contiguous CPU tensors of any type that can be reduced.
void fill(const at::Tensor& tensor, const Elements& elements);

// How many elements are further from what they should be than so many roundings allow; integers
// must be equal.
std::int64_t count_wrong(const at::Tensor& tensor, const Elements& elements, int roundings);

}  // namespace lockstep::bench
