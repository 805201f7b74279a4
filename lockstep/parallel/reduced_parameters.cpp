// SPDX-License-Identifier: BSD-3-Clause
// Hooks parameters, and moves gradients between .grad and the buckets.
#include "lockstep/parallel/reduced_parameters.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/graph_task.h>

namespace lockstep {

ReducedParameter::ReducedParameter(const NamedTensor& named, int position,
                                   GradientListener& listener)
    : number(position), name(named.name), tensor(named.tensor), hooks(tensor, position, listener) {}

void ReducedParameter::put_into(Bucket& bucket, int index) {
  at::Tensor& gradient = tensor.mutable_grad();
  kept.reset();
  const at::Tensor& view = bucket.gradient(index);
  if (gradient.is_same(view)) {
    if (!used) kept = view.clone();
    return;
  }
  if (gradient.defined()) {
    bucket.take(index, gradient);
  } else {
    bucket.take_zeros(index);
  }
  // An unused gradient stays as it is, defined or not, until the trailer shows that another rank
  // used it.
  if (used) gradient = bucket.gradient(index);
}

void ReducedParameter::settle(const at::Tensor& mean, bool used_by_any_rank) {
  unused_everywhere = !used && !used_by_any_rank;
  if (unused_everywhere) {
    if (kept.defined()) mean.copy_(kept);
  } else if (!used) {
    tensor.mutable_grad() = mean;
  }
  kept.reset();
  used = false;
  whole_count = std::max(whole_count, count);
  count = 0;
}

ReducedParameters::ReducedParameters(const std::vector<NamedTensor>& parameters,
                                     GradientListener& listener)
    : listener_(listener) {
  parameters_.reserve(parameters.size());
  for (const NamedTensor& parameter : parameters) {
    parameters_.emplace_back(parameter, static_cast<int>(parameters_.size()), listener);
  }
}

void ReducedParameters::renew_hooks() {
  for (ReducedParameter& parameter : parameters_) {
    if (parameter.hooks.on(parameter.tensor)) continue;
    // A graph of an earlier forward may still lead to the accumulator that it had.
    std::erase_if(parameter.earlier_hooks,
                  [](const GradientHooks& hooks) { return hooks.alone(); });
    parameter.earlier_hooks.push_back(std::move(parameter.hooks));
    parameter.hooks = GradientHooks(parameter.tensor, parameter.number, listener_);
  }
}

bool ReducedParameters::accumulate_nothing() const {
  const auto* needed = torch::autograd::get_current_graph_task_exec_info();
  if (!needed || needed->empty()) return false;
  const auto accumulates = [&](const GradientHooks& hooks) {
    const auto info = needed->find(const_cast<torch::autograd::Node*>(hooks.accumulator()));
    return info != needed->end() && info->second.needed_;
  };
  return std::ranges::none_of(parameters_, [&](const ReducedParameter& parameter) {
    return accumulates(parameter.hooks) ||
           std::ranges::any_of(parameter.earlier_hooks, accumulates);
  });
}

std::vector<std::string> ReducedParameters::unused() const {
  std::vector<std::string> names;
  for (const ReducedParameter& parameter : parameters_) {
    if (parameter.unused_everywhere) names.push_back(parameter.name);
  }
  return names;
}

void UnsynchronizedBackward::backward_entered() {
  const auto parameters = parameters_.lock();
  if (!parameters || parameters->accumulate_nothing()) return;
  if (running_.exchange(true)) return;
  at_end_of_backward<UnsynchronizedBackward>(shared_from_this(), &UnsynchronizedBackward::ended,
                                             &UnsynchronizedBackward::ended);
}

}  // namespace lockstep
