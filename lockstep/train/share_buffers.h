// SPDX-License-Identifier: BSD-3-Clause
// Public. Gives all ranks the same buffers before they evaluate a model together.
#pragma once

#include <cstdint>
#include <utility>

#include <torch/nn/module.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {

// The running statistics of a BatchNorm cover a rank's own batches since the last synchronized
// forward. Without an exchange, ranks would evaluate different models, none of them in a
// checkpoint.
enum class EvaluationBuffers : std::uint8_t {
  // The buffers of rank 0, which checkpoints have.
  of_rank_0,
  // The means over the ranks for floating-point buffers, the values of rank 0 for the others.
  mean,
  // Each rank keeps its own buffers.
  own,
};

// Collective, blocking: changes the buffers of the module and its submodules in place, so that a
// later checkpoint has what was evaluated. Buffers that cannot be written in place stay as they
// are: sparse ones, expanded ones whose elements share memory, and those on the device meta. In a
// group of one, and without buffers, it does nothing. UsageError on every rank if the ranks'
// buffers differ in number, type or size.
void share_buffers(torch::nn::Module& module, GroupArgument group,
                   EvaluationBuffers which = EvaluationBuffers::of_rank_0);
template <ModuleHolder Net>
void share_buffers(const Net& net, GroupArgument group,
                   EvaluationBuffers which = EvaluationBuffers::of_rank_0) {
  share_buffers(*net.ptr(), std::move(group), which);
}

}  // namespace lockstep
