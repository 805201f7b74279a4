// SPDX-License-Identifier: BSD-3-Clause
// The parameters of an optimizer: all of them, each of them once, and those that a step updates.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep::optim {

// The parameters of all groups, in the order of the groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

// The gradients of these parameters that are defined.
std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters);

// The index of the group that has the parameter of this number.
std::size_t group_of(const torch::optim::Optimizer& optimizer, std::size_t number);

// "Float [10, 784]", with strides unless it is contiguous.
std::string description(const at::Tensor& parameter);

// Whether a parameter is listed more than once, in one group or in two.
bool has_repeats(const torch::optim::Optimizer& optimizer);

// Leaves each parameter once in its group, so that a step updates it once: libtorch's optimizers
// update one that is listed twice, as parameters() lists tied weights, twice. UsageError of
// the component `who`, and nothing has changed, if a parameter is in two groups.
void remove_repeats(std::string_view who, torch::optim::Optimizer& optimizer);
// The same for groups of which an optimizer will be made.
std::vector<torch::optim::OptimizerParamGroup> without_repeats(
    std::string_view who, std::vector<torch::optim::OptimizerParamGroup> groups);

// UsageError of the component `name` if two parameters are different tensors in the same memory,
// such as one and its detach().
void require_separate_memory(std::string_view name, const torch::optim::Optimizer& optimizer);

// UsageError of the component `name` if the ranks of the host have one copy of a parameter
// (lockstep/parallel/one_copy.h), which only an optimizer made from their wrapper may update.
void require_own_copies(std::string_view name, const torch::optim::Optimizer& optimizer);

// UsageError of the component `name` unless `whole` has the same parameters in the same groups as
// `own`.
void require_same_parameters(std::string_view name, const torch::optim::Optimizer& whole,
                             const torch::optim::Optimizer& own);

// Throws UsageError, which names the parameter, if one that has a gradient cannot be updated, or if
// one is listed twice.
void require_updatable(std::string_view name, const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::optim
