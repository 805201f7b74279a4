// SPDX-License-Identifier: BSD-3-Clause
// Gathers one tensor from each rank on every rank.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Collective, blocking: returns the ranks' tensors, of one size and type, in rank order and on the
// CPU.
std::vector<at::Tensor> gather_from_ranks(ProcessGroup& group, const at::Tensor& mine);

}  // namespace lockstep
