// SPDX-License-Identifier: BSD-3-Clause
// The state of a module as named tensors, with the names that PyTorch's state_dict gives them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/parallel/named_tensor.h"

namespace lockstep {

// The parameters and buffers, in PyTorch's order: those of a module, then those of its children.
// The tensors share the module's memory and take no part in autograd. Tied weights appear under
// each of their names. A DistributedDataParallel or DataParallel has the state of the module that
// it wraps, without a prefix, as torch::save has it.
//
// C++ has no buffers that are not persistent: every registered buffer is there.
std::vector<NamedTensor> state_dict(const torch::nn::Module& module);

struct StateDifferences {
  std::vector<std::string> missing;     // names that only the module has
  std::vector<std::string> unexpected;  // names that only the tensors have
};

// Copies the tensors into the module's parameters and buffers of the same names. These remain the
// same tensors on the same device, so optimizers and wrappers keep working. Tensors may share the
// module's memory, as those of state_dict(module) under other names: they are read before they
// change.
//
// CheckpointError, which lists every difference, if a name is missing or unexpected, or if a shape
// or an element type differs, or if a tensor cannot be copied, as a sparse one; then nothing has
// changed. With strict = false, missing and unexpected names are returned instead; shapes and types
// must still fit. PyTorch converts element types here: convert the tensor, with tensor.to(type), if
// that is intended. UsageError if two tensors have the same name or one is undefined.
StateDifferences load_state_dict(torch::nn::Module& module, std::span<const NamedTensor> tensors,
                                 bool strict = true);

}  // namespace lockstep
