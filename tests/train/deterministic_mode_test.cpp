// SPDX-License-Identifier: BSD-3-Clause
// What training in microbatches relies on: an operator's outputs and gradients have the same bits
// in every call, on every thread and wherever its input lies. docs/determinism.md lists the
// operators.
#include "lockstep/train/deterministic_mode.h"

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/parallel/models.h"
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional.h>  // all of it, which libtorch 1.13's modules.h forgets
#include <torch/nn/modules.h>
#include <torch/utils.h>

namespace lockstep {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct Operator {
  std::string name;
  std::vector<std::int64_t> input;
  std::function<at::Tensor(const at::Tensor&)> compute;
  std::vector<at::Tensor> parameters = {};
};

template <class Layer>
Operator layer(const std::string& name, std::vector<std::int64_t> input, Layer module) {
  return {name, std::move(input), [module](const at::Tensor& x) mutable { return module(x); },
          module->parameters()};
}

at::Tensor labels(const at::Tensor& scores) {
  return at::arange(scores.size(0), at::kLong).remainder(scores.size(1));
}

std::vector<Operator> operators() {
  const at::Tensor words = at::arange(24, at::kLong).remainder(7).view({4, 6});
  nn::Embedding embedding(7, 5);
  nn::LSTM lstm(nn::LSTMOptions(6, 5).batch_first(true));
  nn::GRU gru(nn::GRUOptions(6, 5).batch_first(true));
  nn::MultiheadAttention attention(8, 2);
  return {
      layer("Linear", {17, 33}, nn::Linear(33, 21)),
      layer("Conv1d", {5, 3, 40}, nn::Conv1d(3, 7, 3)),
      layer("Conv2d", {5, 3, 17, 19}, nn::Conv2d(3, 9, 3)),
      layer("ConvTranspose2d", {3, 4, 9, 9}, nn::ConvTranspose2d(4, 5, 3)),
      layer("BatchNorm1d", {19, 11}, nn::BatchNorm1d(11)),
      layer("BatchNorm2d", {5, 7, 9, 9}, nn::BatchNorm2d(7)),
      layer("LayerNorm", {13, 37}, nn::LayerNorm(nn::LayerNormOptions({37}))),
      layer("GroupNorm", {5, 6, 9, 9}, nn::GroupNorm(3, 6)),
      layer("MaxPool2d", {3, 4, 13, 13}, nn::MaxPool2d(2)),
      layer("AvgPool2d", {3, 4, 13, 13}, nn::AvgPool2d(2)),
      layer("AdaptiveAvgPool2d", {3, 4, 13, 11}, nn::AdaptiveAvgPool2d(4)),
      {"Embedding",
       {4, 6, 5},
       [words, embedding](const at::Tensor& x) mutable { return embedding(words) * x; },
       embedding->parameters()},
      {"LSTM",
       {4, 9, 6},
       [lstm](const at::Tensor& x) mutable { return std::get<0>(lstm(x)); },
       lstm->parameters()},
      {"GRU",
       {4, 9, 6},
       [gru](const at::Tensor& x) mutable { return std::get<0>(gru(x)); },
       gru->parameters()},
      {"MultiheadAttention",
       {9, 3, 8},
       [attention](const at::Tensor& x) mutable { return std::get<0>(attention(x, x, x)); },
       attention->parameters()},
      {"nearest interpolation",
       {2, 3, 7, 7},
       [](const at::Tensor& x) {
         return F::interpolate(x, F::InterpolateFuncOptions()
                                      .scale_factor(std::vector<double>{2, 2})
                                      .mode(torch::kNearest)
                                      .recompute_scale_factor(false));
       }},
      {"bilinear interpolation",
       {2, 3, 7, 7},
       [](const at::Tensor& x) {
         return F::interpolate(x, F::InterpolateFuncOptions()
                                      .size(std::vector<std::int64_t>{11, 13})
                                      .mode(torch::kBilinear)
                                      .align_corners(false));
       }},
      {"ReLU", {1001}, [](const at::Tensor& x) { return x.relu(); }},
      {"GELU", {1001}, [](const at::Tensor& x) { return F::gelu(x); }},
      {"Tanh", {1001}, [](const at::Tensor& x) { return x.tanh(); }},
      {"Sigmoid", {1001}, [](const at::Tensor& x) { return x.sigmoid(); }},
      {"softmax", {13, 37}, [](const at::Tensor& x) { return x.softmax(1); }},
      {"log_softmax", {13, 37}, [](const at::Tensor& x) { return x.log_softmax(1); }},
      {"cumsum", {13, 37}, [](const at::Tensor& x) { return x.cumsum(1); }},
      {"index_select",
       {13, 37},
       [](const at::Tensor& x) {
         return x.index_select(1, at::arange(60, at::kLong).remainder(37));
       }},
      {"gather",
       {13, 37},
       [](const at::Tensor& x) {
         return x.gather(1, at::arange(260, at::kLong).remainder(5).view({13, 20}));
       }},
      {"cat",
       {13, 37},
       [](const at::Tensor& x) {
         return at::cat({x, x * 2}, 1);
       }},
      {"cross_entropy",
       {29, 7},
       [](const at::Tensor& x) { return F::cross_entropy(x, labels(x)); }},
      {"nll_loss",
       {29, 7},
       [](const at::Tensor& x) { return F::nll_loss(x.log_softmax(1), labels(x)); }},
      {"mse_loss", {29, 7}, [](const at::Tensor& x) { return F::mse_loss(x, x.detach() + 0.3); }},
      {"l1_loss", {29, 7}, [](const at::Tensor& x) { return F::l1_loss(x, x.detach() * 0.3); }},
      {"smooth_l1_loss",
       {29, 7},
       [](const at::Tensor& x) { return F::smooth_l1_loss(x, x.detach() * 0.3); }},
      {"binary_cross_entropy_with_logits",
       {29, 7},
       [](const at::Tensor& x) {
         return F::binary_cross_entropy_with_logits(x, x.detach().sigmoid() * 0.9);
       }},
  };
}

// The output and the gradients of the input and the parameters. The input begins `offset` elements
// after an aligned address.
std::vector<at::Tensor> results_of(const Operator& tested, std::int64_t offset) {
  const at::Tensor values = testing::values(tested.input, 1);
  const at::Tensor memory = at::empty({values.numel() + offset});
  const at::Tensor input = memory.narrow(0, offset, values.numel()).view(values.sizes());
  input.copy_(values);
  input.set_requires_grad(true);
  const at::Tensor output = tested.compute(input);
  std::vector<at::Tensor> wanted{input};
  wanted.insert(wanted.end(), tested.parameters.begin(), tested.parameters.end());
  const at::Tensor weights = testing::values(output.sizes(), 2);
  std::vector<at::Tensor> results =
      torch::autograd::grad({(output * weights).sum()}, wanted, {}, {}, false, true);
  results.push_back(output.detach());
  return results;
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                  const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << what;
    if (!found[i].defined()) continue;
    EXPECT_TRUE(at::equal(found[i], expected[i])) << what << ", " << i;
  }
}

TEST(DeterministicMode, OperatorsGiveTheSameBits) {
  torch::manual_seed(1);
  const DeterministicMode mode;
  for (const Operator& tested : operators()) {
    const auto expected = results_of(tested, 0);
    std::vector<std::vector<at::Tensor>> found(3);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < found.size(); ++i) {
      threads.emplace_back(
          [&, i] { found[i] = results_of(tested, static_cast<std::int64_t>(2 * i + 1)); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& results : found) expect_equal(results, expected, tested.name);
  }
}

TEST(DeterministicMode, RestoresTheSettings) {
  at::set_num_threads(3);
  {
    const DeterministicMode outer;
    { const DeterministicMode inner; }
    EXPECT_EQ(at::get_num_threads(), 1);
    EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  }
  EXPECT_EQ(at::get_num_threads(), 3);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  at::set_num_threads(1);
}

}  // namespace
}  // namespace lockstep
