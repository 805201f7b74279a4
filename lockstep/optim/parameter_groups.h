// SPDX-License-Identifier: BSD-3-Clause
// The parameters of an optimizer: each of them once, and those that a step updates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::optim {

// "Float [10, 784]", with strides unless it is contiguous.
std::string description(const at::Tensor& parameter);

// The groups without repeated parameters. Throws UsageError, which begins with the optimizer's
// name, if a parameter is in two groups.
std::vector<torch::optim::OptimizerParamGroup> without_repeats(
    std::string_view optimizer, std::vector<torch::optim::OptimizerParamGroup> groups);

// Throws UsageError, which names the parameter, if one that has a gradient cannot be updated, or if
// one is listed twice.
void require_updatable(std::string_view name, const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
