// SPDX-License-Identifier: BSD-3-Clause
// Compares parameters with what they were.
#include "lockstep/parallel/wrapped_parameters.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// Empty if it has not changed.
std::string change_since(const GradientSize& then, at::IntArrayRef sizes_then,
                         const at::Tensor& now) {
  if (!now.requires_grad()) return "was frozen";
  if (now.scalar_type() != then.dtype) {
    return fmt::format("was converted from {} to {}", c10::toString(then.dtype),
                       c10::toString(now.scalar_type()));
  }
  if (now.device() != then.device) {
    return fmt::format("was moved from {} to {}", then.device.str(), now.device().str());
  }
  if (now.sizes() != sizes_then) {
    return fmt::format("was resized from [{}] to [{}]", fmt::join(sizes_then, ", "),
                       fmt::join(now.sizes(), ", "));
  }
  return "";
}

[[noreturn]] void refuse_change(const std::string& where, const std::string& parameter,
                                const std::string& change) {
  throw UsageError(
      fmt::format("{}parameter {} {} after the model was wrapped, so its gradients would not be "
                  "reduced. Change the model first, then wrap it",
                  where, parameter, change));
}

}  // namespace

WrappedParameters::WrappedParameters(const std::vector<NamedTensor>& parameters, std::string where)
    : where_(std::move(where)) {
  for (const NamedTensor& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    parameters_.push_back({.named = parameter,
                           .requires_grad = tensor.requires_grad(),
                           .size = {tensor.numel(), tensor.scalar_type(), tensor.device()},
                           .sizes = tensor.sizes().vec()});
  }
}

void WrappedParameters::check() const {
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& now = parameter.named.tensor;
    if (!parameter.requires_grad) {
      if (now.requires_grad()) refuse_change(where_, parameter.named.name, "was unfrozen");
      continue;
    }
    const std::string change = change_since(parameter.size, parameter.sizes, now);
    if (!change.empty()) refuse_change(where_, parameter.named.name, change);
  }
}

}  // namespace lockstep
