// SPDX-License-Identifier: BSD-3-Clause
// What each rank has, on every rank.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// A collective call that blocks: the ranks' tensors, of one size and type, in their order and on
// the CPU.
std::vector<at::Tensor> gather_from_ranks(ProcessGroup& group, const at::Tensor& mine);

}  // namespace lockstep
