// SPDX-License-Identifier: BSD-3-Clause
// The two halves of load_optimizer_state_dict(), for ranks that must all succeed or all stay as
// they were.
#pragma once

#include <functional>

#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/torch_file.h"

namespace lockstep {

// Checks the state and copies its tensors, with the errors of load_optimizer_state_dict(). The
// returned function gives the copies to the optimizer, which must still exist, once.
std::function<void()> prepare_optimizer_state(torch::optim::Optimizer& optimizer,
                                              const TorchValue& state);

}  // namespace lockstep
