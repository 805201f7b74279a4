// SPDX-License-Identifier: BSD-3-Clause
// Measures a net's accuracy on a test set, with all ranks together.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "lockstep/comm/group_argument.h"

namespace lockstep {

// The fraction of samples whose label has the greatest output, from 0 to 1. Collective: each rank
// evaluates its share, and every sample counts once. The net is on the group's device; it is put
// into eval mode and back. inputs and labels are on the CPU and have at least one row.
double measure_accuracy(torch::nn::Sequential& net, const at::Tensor& inputs,
                        const at::Tensor& labels, GroupArgument group);

}  // namespace lockstep
