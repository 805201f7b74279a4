// SPDX-License-Identifier: BSD-3-Clause
// How well a net does on a test set, counted by all ranks together.
#pragma once

#include <torch/nn/modules/container/sequential.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The part of the samples whose label has the greatest output, from 0 to 1. A collective call: each
// rank evaluates its share, and every sample counts once. The net lives on the group's device; it
// is put into eval mode and back. inputs and labels live on the CPU, at least one row.
double measure_accuracy(torch::nn::Sequential& net, const at::Tensor& inputs,
                        const at::Tensor& labels, ProcessGroup& group);

}  // namespace lockstep
