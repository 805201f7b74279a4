// SPDX-License-Identifier: BSD-3-Clause
// Public. The parameters of a module, each once. C++'s parameters() and named_parameters() list a
// tensor for each of its names, such as the tied weight of an embedding and an output layer, where
// Python's list it once. libtorch's own functions then count, clip or step it twice:
//
//   torch::optim::Adam optimizer(lockstep::distinct_parameters(*net), 1e-3);
//   torch::nn::utils::clip_grad_norm_(lockstep::distinct_parameters(*net), 1);
//
// All of Lockstep uses these functions; an optimizer of lockstep::optim takes parameters() as well.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Returns them in the order of parameters(), with the parameters of submodules. A tensor that has
// several names is listed under the first, as in Python. Tensors that only share memory are
// different parameters.
std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module);
std::vector<NamedTensor> distinct_named_parameters(const torch::nn::Module& module);

// The same for a list whose tensors are defined.
std::vector<NamedTensor> each_tensor_once(std::vector<NamedTensor> tensors);

}  // namespace lockstep
