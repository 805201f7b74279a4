// SPDX-License-Identifier: BSD-3-Clause
// The two halves of load_optimizer_state_dict(), for ranks that must all succeed or all remain
// unchanged. Internal, unlike optimizer_state.h.
#pragma once

#include <functional>

#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/torch_file/torch_value.h"

namespace lockstep {

// Checks the state and copies its tensors, with the errors of load_optimizer_state_dict(). The
// returned function moves the copies into the optimizer, which must still exist. Call it once.
std::function<void()> prepare_optimizer_state(torch::optim::Optimizer& optimizer,
                                              const TorchValue& state);

}  // namespace lockstep
