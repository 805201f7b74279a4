// SPDX-License-Identifier: BSD-3-Clause
// The state of libtorch's optimizers as Python's optimizer.state_dict() has it, so that a run can
// go on in the other language:
//
//   lockstep::write_torch_file("adam.pt", lockstep::optimizer_state_dict(adam));
//   lockstep::load_optimizer_state_dict(adam, lockstep::read_torch_file("adam.pt"));
//
// and in Python torch.save(adam.state_dict(), "adam.pt") and
// adam.load_state_dict(torch.load("adam.pt", weights_only=True)).
#pragma once

#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/torch_file.h"

namespace lockstep {

// {"state": {0: {"step": ..., "exp_avg": ...}}, "param_groups": [{"lr": ..., "params": [0, 1]}]}
//
// For torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad, and lockstep::optim's; UsageError for
// any other. Parameters are numbered over all groups, in their order. One without state is not in
// "state". Tensors of state share the optimizer's memory: write them to a file, or clone them,
// before the next step.
//
// A sharded optimizer gives its state on the rank that has it all after consolidate_state(), and
// throws UsageError on the others.
TorchValue optimizer_state_dict(const torch::optim::Optimizer& optimizer);

// Replaces the state and the options of every group. Accepts what Python saves for the same
// algorithm and a model with the same parameters in the same order and groups. Tensors are copied
// to the devices of the parameters, in the type that the optimizer itself would give them. Entries
// of groups that C++ has no option for are ignored, as "foreach", "fused" or "initial_lr".
//
// CheckpointError with all differences if the state does not fit: other numbers of groups or
// parameters, other shapes, entries that are missing or out of range, the state of another
// algorithm, maximize=True, which C++ does not have. UsageError for an optimizer of another type
// than those above. The optimizer then has changed nothing.
//
// Of a sharded optimizer, every rank must load the same state. It keeps its part.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const TorchValue& state);

}  // namespace lockstep
