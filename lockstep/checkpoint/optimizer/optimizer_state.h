// SPDX-License-Identifier: BSD-3-Clause
// Public. The state of an optimizer as Python's optimizer.state_dict() has it, so that training can
// continue in the other language:
//
//   lockstep::write_torch_file("adam.pt", lockstep::optimizer_state_dict(adam));
//   lockstep::load_optimizer_state_dict(adam, lockstep::read_torch_file("adam.pt"));
//
// and in Python torch.save(adam.state_dict(), "adam.pt") and
// adam.load_state_dict(torch.load("adam.pt", weights_only=True)).
#pragma once

#include <functional>

#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/torch_file/torch_value.h"

namespace lockstep {

// Returns the state and the options as Python's optimizer.state_dict() has them:
//
//   {"state": {0: {"step": ..., "exp_avg": ...}}, "param_groups": [{"lr": ..., "params": [0, 1]}]}
//
// Takes torch::optim::SGD, Adam, AdamW, RMSprop and Adagrad, and the optimizers of lockstep::optim;
// UsageError for any other. Parameters are numbered over all groups, in their order, each once, as
// in Python; if one is listed twice, a warning says that step() updates it twice. A parameter
// without state is not in "state". The tensors share the optimizer's memory: write them to a file,
// or clone them, before the next step.
//
// For a sharded optimizer, call consolidate_state() first: the rank that then has the whole state
// returns it; the others throw UsageError.
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
// repeats. For a sharded optimizer, every rank must load the same state, of which it keeps its
// part.
void load_optimizer_state_dict(torch::optim::Optimizer& optimizer, const TorchValue& state);

namespace detail {

// The first half of load_optimizer_state_dict(), for ranks that must all succeed or all remain
// unchanged: checks the state and copies its tensors, with the same errors. The returned function
// is the second half: it moves the copies into the optimizer, which must still exist. Call it once.
std::function<void()> prepare_optimizer_state(torch::optim::Optimizer& optimizer,
                                              const TorchValue& state);

}  // namespace detail
}  // namespace lockstep
