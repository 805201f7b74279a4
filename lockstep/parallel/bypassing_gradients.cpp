// SPDX-License-Identifier: BSD-3-Clause
// Takes snapshots of parameters, and compares them.
#include "lockstep/parallel/bypassing_gradients.h"

#include <utility>

#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

constexpr const char* kRemedy =
    "compute each loss from the outputs of the wrapper, or after a call of the wrapper in the same "
    "step. To keep gradients on this rank only, hold no_sync() during that backward, or set "
    "requires_grad to false";

}  // namespace

BypassingGradients::BypassingGradients(const std::vector<NamedTensor>& parameters,
                                       ErrorContext context)
    : context_(std::move(context)) {
  for (const NamedTensor& parameter : parameters) parameters_.push_back({parameter});
}

std::uint64_t BypassingGradients::values_of(const at::Tensor& parameter) {
  return parameter.is_cpu() ? tensor_hash(parameter)
                            : static_cast<std::uint64_t>(ParameterSnapshot::of(parameter).version);
}

void BypassingGradients::begin_step() {
  std::int64_t changes = 0;
  bool any_uncounted = false;
  for (Parameter& parameter : parameters_) {
    const ParameterSnapshot now = ParameterSnapshot::of(parameter.named.tensor);
    changes += now.version;
    any_uncounted |=
        now.version == parameter.at_forward.version && now.values != parameter.at_forward.values;
    parameter.at_forward = now;
  }
  updates_.set(changes, any_uncounted);
}

bool BypassingGradients::belongs_to_step(int number) const {
  const Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
  return parameter.at_forward == ParameterSnapshot::of(parameter.named.tensor);
}

void BypassingGradients::keep_on_this_rank(int number) {
  Parameter& parameter = parameters_[static_cast<std::size_t>(number)];
  const std::uint64_t now = values_of(parameter.named.tensor);
  if (parameter.at_bypass && parameter.at_bypass != now) refuse_update(parameter);
  parameter.at_bypass = now;
  any_kept_ = true;
}

std::string BypassingGradients::compare_updates(ProcessGroup& group) {
  std::vector<at::Tensor> parameters;
  for (const Parameter& parameter : parameters_) {
    parameters.push_back(parameter.named.tensor.detach());
  }
  return updates_.compare(group, parameters);
}

void BypassingGradients::clear() {
  if (!std::exchange(any_kept_, false)) return;
  for (Parameter& parameter : parameters_) parameter.at_bypass = {};
}

void BypassingGradients::refuse_updates() const {
  if (!any_kept_) return;
  for (const Parameter& parameter : parameters_) {
    if (!parameter.at_bypass) continue;
    if (parameter.at_bypass != values_of(parameter.named.tensor)) refuse_update(parameter);
  }
}

void BypassingGradients::refuse_update(const Parameter& parameter) const {
  throw UsageError(context_,
                   "parameter " + parameter.named.name +
                       " has changed after a backward that computed its gradient on this rank "
                       "only, since it did not start from an output of the wrapped model. The "
                       "ranks' parameters differ now, unless the program changed it alike on every "
                       "rank",
                   kRemedy);
}

void BypassingGradients::require_reduced(const ErrorContext& caller) const {
  if (!any_kept_) return;
  for (const auto& [named, at_forward, at_bypass] : parameters_) {
    if (!at_bypass || !named.tensor.grad().defined()) continue;
    throw UsageError(caller,
                     "the gradient of " + named.name +
                         " has parts that were not reduced, since their backward did not start "
                         "from an output of the wrapped model",
                     kRemedy);
  }
}

}  // namespace lockstep
