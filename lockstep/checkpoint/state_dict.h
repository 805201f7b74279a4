// SPDX-License-Identifier: BSD-3-Clause
// The state of a module as named tensors, with the names that PyTorch's state_dict gives them, and
// the state of an optimizer as Python's optimizer.state_dict() has it, so that a run can go on in
// the other language:
//
//   lockstep::write_torch_file("adam.pt", lockstep::optimizer_state_dict(adam));
//   lockstep::load_optimizer_state_dict(adam, lockstep::read_torch_file("adam.pt"));
//
// and in Python torch.save(adam.state_dict(), "adam.pt") and
// adam.load_state_dict(torch.load("adam.pt", weights_only=True)).
#pragma once

#include <span>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/tensor/named_tensor.h"

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
// module's memory, such as those of state_dict(module) under other names: they are read before they
// change.
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

// {"state": {0: {"step": ..., "exp_avg": ...}}, "param_groups": [{"lr": ..., "params": [0, 1]}]}
//
// For torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad, and lockstep::optim's; UsageError for
// any other. Parameters are numbered over all groups, in their order, each once, as in Python; if
// one is listed twice, a warning says that step() updates it twice. One without state is not in
// "state". Tensors of state share the optimizer's memory: write them to a file, or clone them,
// before the next step.
//
// A sharded optimizer gives its state on the rank that has it all after consolidate_state(), and
// throws UsageError on the others.
TorchValue optimizer_state_dict(const torch::optim::Optimizer& optimizer);

// Replaces the state and the options of every group. Accepts what Python saves for the same
// algorithm and a model with the same parameters in the same order and groups. Tensors are copied
// to the devices of the parameters, in the type that the optimizer itself would give them. Entries
// of groups that C++ has no option for are ignored, such as "foreach" and "initial_lr".
//
// CheckpointError with all differences if the state does not fit: other numbers of groups or
// parameters, other shapes, entries that are missing or out of range, the state of another
// algorithm, maximize=True, which C++ does not have. UsageError for an optimizer of any other
// type. After either error, the optimizer is unchanged.
//
// A parameter that a group lists twice, as parameters() lists tied weights, first loses its
// repeats. Of a sharded optimizer, every rank must load the same state. It keeps its part.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const TorchValue& state);

}  // namespace lockstep
