// SPDX-License-Identifier: BSD-3-Clause
// The element types of measured collectives, and tensors with known elements, so that the results
// of collectives can be checked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/tensor/reduce_op.h"

namespace lockstep::bench {

// The types that can be measured, by their names in options.
const std::map<std::string, at::ScalarType>& element_types();
// Returns the name of one of these types.
const std::string& name_of(at::ScalarType type);

// How elements of a type are reduced.
struct Reduction {
  ReduceOp op = ReduceOp::sum;
  at::ScalarType type = at::kFloat;
};

// Returns the element of a rank at a position in a round: small integers that differ between
// neighbours, ranks and rounds; 0 and 1 for bools.
double known_element(Reduction reduction, int rank, std::int64_t position, int round);

// Returns the reduction of the ranks' elements; for bools, nonzero means true.
double known_reduction(Reduction reduction, int ranks, std::int64_t position, int round);

using Elements = std::function<double(std::int64_t position)>;

// Takes contiguous CPU tensors of any type that can be reduced.
void fill(const at::Tensor& tensor, const Elements& elements);

// Returns how many elements differ from the expected ones by more than `roundings` roundings;
// integers must be equal.
std::int64_t count_wrong(const at::Tensor& tensor, const Elements& elements, int roundings);

}  // namespace lockstep::bench
