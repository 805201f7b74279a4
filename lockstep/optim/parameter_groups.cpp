// SPDX-License-Identifier: BSD-3-Clause
// Looks through the parameters of an optimizer's groups.
#include "lockstep/optim/parameter_groups.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <c10/core/TensorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep::optim {
namespace {

std::string description(std::size_t index, std::size_t group, const at::Tensor& parameter) {
  return fmt::format("parameter {} of group {}, of shape [{}]", index, group,
                     fmt::join(parameter.sizes(), ", "));
}

// Why a parameter that has a gradient cannot be updated, and what to do; empty if it can be.
std::string obstacle(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.layout() != at::kStrided) {
    return "has a gradient that is not dense; for an embedding, choose dense gradients "
           "(sparse(false)), or use an optimizer of torch::optim";
  }
  if (gradient.scalar_type() != parameter.scalar_type() ||
      gradient.device() != parameter.device()) {
    return fmt::format("is {} on {}, but its gradient is {} on {}; convert the gradient",
                       c10::toString(parameter.scalar_type()), parameter.device().str(),
                       c10::toString(gradient.scalar_type()), gradient.device().str());
  }
  if (!can_update(parameter.scalar_type())) {
    return fmt::format(
        "is of type {}, but only float, double, bfloat16 and half can be updated; "
        "use an optimizer of torch::optim",
        c10::toString(parameter.scalar_type()));
  }
  return "";
}

void remove_repeats(std::string_view who, std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::unordered_map<const c10::TensorImpl*, std::size_t> group_of;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const std::vector<at::Tensor>& listed = groups[group].params();
    for (std::size_t i = 0; i < listed.size(); ++i) {
      const auto [known, is_new] = group_of.emplace(listed[i].unsafeGetTensorImpl(), group);
      if (known->second == group) continue;
      throw UsageError(
          {.component = std::string(who)},
          fmt::format("{} is in group {} too", description(i, group, listed[i]), known->second),
          "list it in one of them");
    }
  }
  for (auto& group : groups) {
    std::unordered_set<const c10::TensorImpl*> seen;
    std::erase_if(group.params(), [&](const at::Tensor& parameter) {
      return !seen.insert(parameter.unsafeGetTensorImpl()).second;
    });
  }
}

}  // namespace

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

std::size_t group_of(const torch::optim::Optimizer& optimizer, std::size_t number) {
  std::size_t group = 0;
  while (number >= optimizer.param_groups()[group].params().size()) {
    number -= optimizer.param_groups()[group++].params().size();
  }
  return group;
}

std::string description(const at::Tensor& parameter) {
  std::string text = fmt::format("{} [{}]", c10::toString(parameter.scalar_type()),
                                 fmt::join(parameter.sizes(), ", "));
  if (!parameter.is_contiguous()) {
    text += fmt::format(" with strides [{}]", fmt::join(parameter.strides(), ", "));
  }
  return text;
}

bool has_repeats(const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> seen;
  return std::ranges::any_of(parameters_of(optimizer), [&](const at::Tensor& parameter) {
    return !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
}

void remove_repeats(std::string_view who, torch::optim::Optimizer& optimizer) {
  if (has_repeats(optimizer)) remove_repeats(who, optimizer.param_groups());
}

std::vector<torch::optim::OptimizerParamGroup> without_repeats(
    std::string_view who, std::vector<torch::optim::OptimizerParamGroup> groups) {
  remove_repeats(who, groups);
  return groups;
}

void require_separate_memory(std::string_view name, const torch::optim::Optimizer& optimizer) {
  std::unordered_map<const void*, std::size_t> at_address;
  const std::vector<at::Tensor> parameters = parameters_of(optimizer);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].numel() == 0 || !parameters[i].has_storage()) continue;
    const auto [other, is_new] = at_address.emplace(parameters[i].data_ptr(), i);
    if (is_new) continue;
    throw UsageError(
        {.component = std::string(name)},
        fmt::format("parameters {} and {} are two tensors in the same memory, and would become "
                    "independent when the optimizer divides them among the ranks",
                    other->second, i),
        "register one tensor under both names, or use an optimizer that is not sharded");
  }
}

void require_own_copies(std::string_view name, const torch::optim::Optimizer& optimizer) {
  std::size_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (has_one_copy(parameter)) {
        throw UsageError({.component = std::string(name)},
                         fmt::format("the ranks have one copy of parameter {} "
                                     "(one_copy_per_host), and each of them would update it",
                                     number),
                         "make the optimizer from the wrapped model, as in "
                         "lockstep::optim::Adam optimizer(model, 1e-3)");
      }
      ++number;
    }
  }
}

void require_same_parameters(std::string_view name, const torch::optim::Optimizer& whole,
                             const torch::optim::Optimizer& own) {
  const auto& groups = whole.param_groups();
  const auto& own_groups = own.param_groups();
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  bool fits = groups.size() == own_groups.size();
  for (std::size_t i = 0; fits && i < groups.size(); ++i) {
    fits = std::ranges::equal(groups[i].params(), own_groups[i].params(), is_same);
  }
  if (fits) return;
  throw UsageError({.component = std::string(name)},
                   "load_whole was given an optimizer of other parameters",
                   "give it the one of without_state(), with a state");
}

void require_updatable(std::string_view name, const torch::optim::Optimizer& optimizer) {
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& parameters = groups[group].params();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& parameter = parameters[i];
      std::string fault;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        fault = "is listed before; list it once, in one group";
      } else if (parameter.grad().defined()) {
        fault = obstacle(parameter);
      }
      if (fault.empty()) continue;
      throw UsageError({.component = std::string(name)},
                       fmt::format("{} {}", description(i, group, parameter), fault));
    }
  }
}

}  // namespace lockstep::optim
