// SPDX-License-Identifier: BSD-3-Clause
// Leaves out tensors that have been listed before.
#include "lockstep/parallel/distinct_parameters.h"

#include <unordered_set>
#include <utility>

#include <c10/core/TensorImpl.h>

namespace lockstep {

std::vector<NamedTensor> each_tensor_once(std::vector<NamedTensor> tensors) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(tensors, [&](const NamedTensor& named) {
    return !seen.insert(named.tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

std::vector<NamedTensor> distinct_named_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> all;
  for (const auto& item : module.named_parameters()) all.push_back({item.key(), item.value()});
  return each_tensor_once(std::move(all));
}

std::vector<at::Tensor> distinct_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parameters = module.parameters();
  std::unordered_set<const c10::TensorImpl*> seen;
  std::erase_if(parameters, [&](const at::Tensor& parameter) {
    return !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  return parameters;
}

}  // namespace lockstep
