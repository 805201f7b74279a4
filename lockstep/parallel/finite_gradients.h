// SPDX-License-Identifier: BSD-3-Clause
// Reports infinite and NaN gradients by an error that names them.
#pragma once

#include <torch/nn/module.h>

#include "lockstep/core/error.h"

namespace lockstep {

// Gradients have infinite or NaN elements. Backward throws this on every rank after all gradients
// have been reduced, so the group and the model can be used again. Clear the gradients before the
// next backward, and do not step with them.
class NonFiniteGradient : public Error {
 public:
  using Error::Error;
};

// For training in one process, between backward and the optimizer's step. NonFiniteGradient, naming
// the parameters, if the module has such gradients. With DistributedDataParallel set .check_finite,
// which also names the rank.
void check_finite_gradients(const torch::nn::Module& module);

}  // namespace lockstep
