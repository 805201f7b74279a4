// SPDX-License-Identifier: BSD-3-Clause
// Small models, deterministic data, bucket sizes and gradient comparisons for the tests of
// parallel/.
#pragma once

#include <array>
#include <string>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {

struct MlpImpl : torch::nn::Cloneable<MlpImpl> {
  explicit MlpImpl(int first = 9, int second = 5) : widths{first, second} { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(6, widths[0]));
    middle = register_module("middle", torch::nn::Linear(widths[0], widths[1]));
    last = register_module("last", torch::nn::Linear(widths[1], 3));
  }
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::tanh(middle(torch::relu(hidden(x)))));
  }
  std::array<int, 2> widths;
  torch::nn::Linear hidden{nullptr}, middle{nullptr}, last{nullptr};
};
TORCH_MODULE(Mlp);

// Its middle layer's gradient is too large to be copied without need.
struct WideImpl : MlpImpl {
  WideImpl() : MlpImpl(1000, 1000) {}
};
TORCH_MODULE(Wide);

inline const DistributedDataParallelOptions kOneBucket{};
// A limit of nothing: a bucket for each parameter.
inline const DistributedDataParallelOptions kManyBuckets{.bucket_cap_mb = 0, .first_bucket_mb = 0};

struct ConvNetImpl : torch::nn::Module {
  ConvNetImpl() {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3)));
    last = register_module("last", torch::nn::Linear(3 * 4 * 4, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return last(second(torch::relu(first(x))).flatten(1)); }
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(ConvNet);

// One weight under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    in = register_module("in", torch::nn::Linear(6, 6));
    weight = register_parameter("weight", in->weight);
    bias = register_parameter("bias", torch::zeros({6}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::nn::functional::linear(torch::tanh(in(x)), weight, bias);
  }
  torch::nn::Linear in{nullptr};
  at::Tensor weight, bias;
};
TORCH_MODULE(Tied);

// Values without a pattern, the same in every run and on every rank; salt gives others.
inline at::Tensor values(at::IntArrayRef sizes, double salt = 0) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  const auto positions = torch::arange(count, at::kDouble);
  return torch::sin(positions * 1.7 + salt).to(at::kFloat).reshape(sizes);
}

// Gives a module weights that are the same in every run: ranks that are threads draw theirs from
// one generator, in whatever order.
inline void set_weights(torch::nn::Module& module, double salt) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.copy_(values(parameter.sizes(), salt) / 3);
  }
}

// Part `rank` of a batch that is cut evenly.
inline at::Tensor part(const at::Tensor& batch, int rank, int ranks) {
  return batch.chunk(ranks)[static_cast<std::size_t>(rank)];
}

// Gives a module the other's parameters and buffers, by name.
inline void copy_state(torch::nn::Module& to, const torch::nn::Module& from) {
  const torch::NoGradGuard no_grad;
  auto parameters = to.named_parameters();
  for (const auto& item : from.named_parameters()) parameters[item.key()].copy_(item.value());
  auto buffers = to.named_buffers();
  for (const auto& item : from.named_buffers()) buffers[item.key()].copy_(item.value());
}

inline void expect_close(const at::Tensor& actual, const at::Tensor& expected,
                         const std::string& what) {
  ASSERT_EQ(actual.defined(), expected.defined()) << what;
  if (!expected.defined()) return;
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-4, 1e-6))
      << what << ": " << actual.flatten().slice(0, 0, 8) << "\nexpected "
      << expected.flatten().slice(0, 0, 8);
}

inline void expect_same_gradients(const torch::nn::Module& actual,
                                  const torch::nn::Module& expected) {
  const auto wanted = expected.named_parameters();
  for (const auto& item : actual.named_parameters()) {
    expect_close(item.value().grad(), wanted[item.key()].grad(), item.key());
  }
}

// The two ways of optimizer.zero_grad(); the versions of libtorch differ in their default.
inline void reset_gradients(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) parameter.mutable_grad().reset();
}
inline void zero_gradients(torch::nn::Module& module) {
  for (at::Tensor& parameter : module.parameters()) {
    if (!parameter.grad().defined()) continue;
    parameter.mutable_grad().detach_();
    parameter.mutable_grad().zero_();
  }
}

}  // namespace lockstep::testing
