// SPDX-License-Identifier: BSD-3-Clause
// A torch::nn::Sequential that can be part of another one, whose clones keep the names of its
// modules, and in which backward may compute the modules again.
#pragma once

#include <memory>

#include <torch/nn/modules/container/sequential.h>

#include "lockstep/parallel/activation_checkpoint.h"

namespace lockstep::nets {

struct NamedSequentialImpl : torch::nn::SequentialImpl {
  // Not a template, so that another Sequential can call it.
  at::Tensor forward(const at::Tensor& input) {
    if (!recomputes) return SequentialImpl::forward(input);
    at::Tensor output = input;
    for (torch::nn::AnyModule& module : *this) output = checkpoint(module, output);
    return output;
  }

  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<at::Device>& device = c10::nullopt) const override {
    auto copy = std::make_shared<NamedSequentialImpl>();
    copy->recomputes = recomputes;
    auto module = begin();
    for (const auto& item : named_children())
      copy->push_back(item.key(), (module++)->clone(device));
    return copy;
  }

  // For functions that return any Sequential.
  static torch::nn::Sequential make() {
    return std::shared_ptr<torch::nn::SequentialImpl>(std::make_shared<NamedSequentialImpl>());
  }

  // Whether checkpoint() is around each module.
  bool recomputes = false;
};
TORCH_MODULE(NamedSequential);

// The blocks of a net are the modules of the NamedSequentials within it. Their forwards keep their
// inputs only, and backward computes them again.
inline void recompute_blocks(const torch::nn::Module& net) {
  for (const auto& module : net.modules(/*include_self=*/false)) {
    if (auto* const blocks = module->as<NamedSequentialImpl>()) blocks->recomputes = true;
  }
}

}  // namespace lockstep::nets
