// SPDX-License-Identifier: BSD-3-Clause
// A torch::nn::Sequential that can be part of another one, and whose clones keep the names of its
// modules.
#pragma once

#include <memory>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::nets {

struct NamedSequentialImpl : torch::nn::SequentialImpl {
  // Not a template, so that another Sequential can call it.
  at::Tensor forward(const at::Tensor& input) { return SequentialImpl::forward(input); }

  std::shared_ptr<torch::nn::Module> clone(
      const c10::optional<at::Device>& device = c10::nullopt) const override {
    auto copy = std::make_shared<NamedSequentialImpl>();
    auto module = begin();
    for (const auto& item : named_children())
      copy->push_back(item.key(), (module++)->clone(device));
    return copy;
  }

  // For functions that return any Sequential.
  static torch::nn::Sequential make() {
    return std::shared_ptr<torch::nn::SequentialImpl>(std::make_shared<NamedSequentialImpl>());
  }
};
TORCH_MODULE(NamedSequential);

}  // namespace lockstep::nets
