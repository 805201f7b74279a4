// SPDX-License-Identifier: BSD-3-Clause
// Public. Clips the gradients of a wrapped model between backward and the optimizer's step:
//
//   loss.backward();
//   lockstep::clip_grad_norm_(model, 1.0);
//   optimizer.step();
//
// Like torch::nn::utils::clip_grad_norm_ and clip_grad_value_, but also right with
// `.whole_gradients = false`, and bitwise equal on every rank for any number of threads.
#pragma once

#include <concepts>
#include <vector>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {

// Collective. Scales the gradients so that their norm is at most max_norm, and returns the norm
// before that. It is the norm over all parameters, each counted once even if it has several names.
// With a norm_type of infinity it is the largest absolute value. Each rank computes the norm of its
// share, and the shares are added in rank order. Throws Error on every rank if error_if_nonfinite
// is set and the norm is infinite or NaN; otherwise such gradients are scaled as in PyTorch.
// UsageError on every rank, before a gradient is scaled, if ranks pass different max_norm or
// norm_type; on this rank for a negative max_norm, for a norm_type that is not positive, and if
// there are gradients, but no backward of the model has reduced them.
double clip_grad_norm_(DistributedDataParallelBase& model, double max_norm, double norm_type = 2,
                       bool error_if_nonfinite = false);

// Clamps each element to [-clip_value, clip_value]. Exchanges nothing if gradients are whole;
// otherwise collective. UsageError for a negative clip_value. Ranks do not compare it: pass the
// same on every rank.
void clip_grad_value_(DistributedDataParallelBase& model, double clip_value);

// Explains that a list of parameters cannot be clipped.
template <std::same_as<std::vector<at::Tensor>> Parameters, class... Limits>
double clip_grad_norm_(const Parameters&, Limits...) {
  static_assert(sizeof(Parameters) == 0,
                "clip_grad_norm_ takes the wrapped model, not its parameters: "
                "lockstep::clip_grad_norm_(model, 1.0). For a module that is not wrapped there is "
                "torch::nn::utils::clip_grad_norm_");
  return 0;
}
template <std::same_as<std::vector<at::Tensor>> Parameters, class... Limits>
void clip_grad_value_(const Parameters&, Limits...) {
  static_assert(sizeof(Parameters) == 0,
                "clip_grad_value_ takes the wrapped model, not its parameters: "
                "lockstep::clip_grad_value_(model, 1.0). For a module that is not wrapped there is "
                "torch::nn::utils::clip_grad_value_");
}

}  // namespace lockstep
