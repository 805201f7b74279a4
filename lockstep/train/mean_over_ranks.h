// SPDX-License-Identifier: BSD-3-Clause
// Means over the samples of all ranks, such as the loss of an epoch.
#pragma once

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group_argument.h"

namespace lockstep {

// Each rank passes sums over its own samples, and the number of samples in each sum; both 1-D and
// of the same length on every rank. Returns the mean for each entry, in double on the CPU, the same
// bits on every rank; NaN for an entry without samples. A collective call, blocking.
at::Tensor mean_over_ranks(const at::Tensor& sums, const at::Tensor& samples, GroupArgument group);

}  // namespace lockstep
