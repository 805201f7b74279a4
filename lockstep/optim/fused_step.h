// SPDX-License-Identifier: BSD-3-Clause
// A step of a fused optimizer: the closure's loss, and then each parameter's update.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include "lockstep/libtorch_version.h"
#include "lockstep/optim/dense_parameter.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep::optim {

// How many elements are worth another thread.
constexpr std::int64_t kGrain = 32 * 1024;

// Calls update(begin, end) for ranges that make up all elements, on several threads if there are
// many.
template <class Update>
void update_in_parallel(const DenseParameter& parameter, const Update& update) {
  at::parallel_for(0, parameter.values().numel(), kGrain, update);
}

// The optimizer's state of a parameter, made when it is first asked for.
template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const DenseParameter& parameter) {
  auto& state = libtorch::optimizer_state(optimizer, parameter.parameter());
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// Calls update(optimizer, parameter, options) for each parameter that has a gradient.
template <class Options, class Update>
void update_parameters(std::string_view name, torch::optim::Optimizer& optimizer,
                       const Update& update) {
  require_updatable(name, optimizer);
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const DenseParameter dense(parameter);
      update(optimizer, dense, options);
      dense.commit();
    }
  }
}

// A step of an optimizer that derives from libtorch's optimizer Base. Returns the closure's loss;
// undefined without a closure.
template <class Base, class Options, class Optimizer, class Update>
at::Tensor fused_step(std::string_view name, Optimizer& optimizer,
                      const torch::optim::Optimizer::LossClosure& closure, const Update& update) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  if (all_on_cpu(optimizer)) {
    update_parameters<Options>(name, optimizer, update);
  } else {
    optimizer.Base::step();
  }
  return loss;
}

}  // namespace lockstep::optim
