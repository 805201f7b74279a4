// SPDX-License-Identifier: BSD-3-Clause
// Public. One number for the whole state of a training, to tell whether two runs have come to the
// same bits.
#pragma once

#include <string>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

// Returns the SHA-256, as lower-case hexadecimal digits, of the names, types, shapes and elements
// in state_dict(module) and of optimizer_state_dict(optimizer). Two trainings have the same one
// exactly if parameters, buffers, the optimizer's state and its options have the same bits. Waits
// for a GPU. For a sharded optimizer, call consolidate_state() first: the rank that then has the
// whole state gets the number of an optimizer that is not sharded. UsageError on the other ranks,
// and for an optimizer that optimizer_state_dict() does not take.
std::string state_sha256(const torch::nn::Module& module, const torch::optim::Optimizer& optimizer);

}  // namespace lockstep
