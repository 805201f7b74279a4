// SPDX-License-Identifier: BSD-3-Clause
// Public. The state of a module as named tensors, with the names that PyTorch's state_dict gives
// them. optimizer_state.h, which this includes, does the same for optimizers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/checkpoint/optimizer/optimizer_state.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Returns the parameters and buffers, in PyTorch's order: a module's own come before its
// children's. The tensors share the module's memory and take no part in autograd. Tied weights
// appear under each of their names. A DistributedDataParallel or DataParallel has the state of the
// module that it wraps, without a prefix, as in torch::save.
//
// C++ has no buffers that are not persistent, so every registered buffer is included.
std::vector<NamedTensor> state_dict(const torch::nn::Module& module);

struct StateDifferences {
  std::vector<std::string> missing;     // names that only the module has
  std::vector<std::string> unexpected;  // names that only the tensors have
};

// Copies the tensors into the module's parameters and buffers of the same names. These remain the
// same tensors on the same device, so optimizers and wrappers keep working. Tensors may share the
// module's memory, such as tensors of state_dict(module) under other names: they are read before
// they change.
//
// CheckpointError, which lists every difference, if a name is missing or unexpected, if a shape or
// an element type differs, or if a tensor cannot be copied, such as a sparse one; then nothing has
// changed. With strict = false, missing and unexpected names are returned instead; shapes and types
// must still fit. If names differ by a prefix, such as the "module." of Python's
// DistributedDataParallel, the error says so; with strict = false, a warning does. PyTorch converts
// element types here: convert the tensor, with tensor.to(type), if that is intended. UsageError if
// two tensors have the same name or one is undefined.
StateDifferences load_state_dict(torch::nn::Module& module, std::span<const NamedTensor> tensors,
                                 bool strict = true);

namespace detail {

// Copies `tensors` into `targets` of the same names, as load_state_dict() does with the tensors of
// a module. `owner` is for messages, such as "this module", and so is `remedy`, which is left out
// if the names differ by a prefix: the message then says how to cut it.
StateDifferences copy_by_name(std::span<const NamedTensor> targets,
                              std::span<const NamedTensor> tensors, bool strict,
                              const std::string& owner, const std::string& remedy);

}  // namespace detail
}  // namespace lockstep
