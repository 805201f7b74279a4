// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of reductions in host memory, for collectives and DataParallel.
#pragma once

#include <cstdint>
#include <span>

#include <c10/core/ScalarType.h>

#include "lockstep/tensor/reduce_op.h"

namespace lockstep {

// Whether tensors of this type can be reduced by this operation: complex ones only by sums and
// means.
bool can_reduce(at::ScalarType type, ReduceOp op);

// For each i below count, every destination's element i becomes
//   scale * (sources[0][i] op sources[1][i] op ... ),
// combined from left to right, so that the bits depend only on the order of the sources. Half types
// are accumulated in float and rounded once. A mean is a sum with a scale. NaN wins a min or a max.
// UsageError unless can_reduce(type, op).
// A destination may be one of the sources, but must not overlap one otherwise.
void reduce(std::span<const void* const> sources, std::span<void* const> destinations,
            std::int64_t count, at::ScalarType type, ReduceOp op, double scale);

}  // namespace lockstep
