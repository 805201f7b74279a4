// SPDX-License-Identifier: BSD-3-Clause
// The computation of SyncBatchNorm: one collective in forward, one in backward.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// What a channel's values are over all ranks, in double. Every rank has the same bits.
struct BatchStatistics {
  at::Tensor mean;   // {C}
  at::Tensor var;    // {C}, of the population: divided by count
  at::Tensor count;  // of values per channel, without dimensions
};

struct NormalizedBatch {
  at::Tensor output;  // with the input's type and memory format
  BatchStatistics statistics;
};

// Collective, blocking. The input has the shape {N, C, ...}, also with N == 0; weight and bias have
// the shape {C} or are undefined. UsageError on every rank if there are fewer than two values per
// channel. The graph keeps the group alive.
NormalizedBatch normalize_over_ranks(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& bias, double eps,
                                     std::shared_ptr<ProcessGroup> group);

}  // namespace lockstep
