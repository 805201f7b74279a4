// SPDX-License-Identifier: BSD-3-Clause
// The wrapper: what it takes, what it returns, and how a batch goes through the replicas.
#include "lockstep/parallel/data_parallel.h"

#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "tests/parallel/models.h"
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct PlainNet : torch::nn::Module {
  PlainNet() { linear = register_module("linear", torch::nn::Linear(6, 2)); }
  Tensor forward(const Tensor& x) { return linear(x); }
  torch::nn::Linear linear{nullptr};
};

// What the wrapper computes, forward and backward, is what the wrapped module would.
template <class Model>
void expect_like_its_module(Model& model, const Tensor& batch) {
  const auto gradients = [&](auto& of) {
    reset_gradients(*model->module());
    const Tensor output = of.forward(batch);
    output.square().mean().backward();
    std::vector<Tensor> result{output.detach()};
    for (const Tensor& parameter : model->module()->parameters())
      result.push_back(parameter.grad());
    return result;
  };
  const auto expected = gradients(*model->module());
  const auto actual = gradients(*model);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expect_close(actual[i], expected[i], std::to_string(i));
  }
}

TEST(DataParallel, TakesAGpuTwice) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "there is no GPU";
  const at::Device gpu(at::kCUDA, 0);
  Mlp net;
  net->to(gpu);
  DataParallel model(net, {.device_ids = {gpu, gpu}});
  expect_like_its_module(model, values({8, 6}).to(gpu));
}

TEST(DataParallel, WrapsEveryKindOfModule) {
  Mlp holder;
  DataParallel of_holder(holder, {.replicas = 2});
  static_assert(std::is_same_v<decltype(of_holder), DataParallel<Mlp>>);
  expect_like_its_module(of_holder, values({8, 6}));
  EXPECT_EQ(of_holder->module().get(), holder.get());

  DataParallel of_temporary(Mlp(), {.replicas = 2});
  expect_like_its_module(of_temporary, values({8, 6}));

  auto shared = std::make_shared<PlainNet>();
  DataParallel of_shared(shared, {.replicas = 2, .trust_constructors = true});
  static_assert(std::is_same_v<decltype(of_shared), DataParallel<PlainNet>>);
  expect_like_its_module(of_shared, values({8, 6}));
  EXPECT_EQ(of_shared->module(), shared);

  PlainNet plain;
  DataParallel of_plain(plain, {.replicas = 2, .trust_constructors = true});
  static_assert(std::is_same_v<decltype(of_plain), DataParallel<PlainNet>>);
  expect_like_its_module(of_plain, values({8, 6}));
  EXPECT_EQ(of_plain->module().get(), &plain);

  torch::nn::Sequential sequential(torch::nn::Linear(6, 3), torch::nn::ReLU());
  DataParallel of_sequential(sequential, {.replicas = 2});
  expect_like_its_module(of_sequential, values({8, 6}));

  torch::nn::Linear linear(6, 3);
  DataParallel<torch::nn::Linear> spelled(linear, {.replicas = 2});
  expect_like_its_module(spelled, values({8, 6}));

  DataParallel one_a_core(linear);
  expect_like_its_module(one_a_core, values({64, 6}));
}

TEST(DataParallel, IsAModuleItself) {
  Mlp net;
  DataParallel model(net, {.replicas = 2});
  EXPECT_EQ(model->parameters().size(), net->parameters().size());
  EXPECT_TRUE(model->named_parameters().contains("module.hidden.weight"));
  model->eval();
  EXPECT_FALSE(net->is_training());
  EXPECT_EQ(model->forward(values({4, 6})).size(0), 4);
  std::ostringstream text;
  text << model;
  EXPECT_THAT(text.str(), HasSubstr("DataParallel"));
  EXPECT_THAT(text.str(), HasSubstr("hidden"));
}

// Says in which threads it ran, and with how many samples.
struct WitnessImpl : torch::nn::Cloneable<WitnessImpl> {
  WitnessImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::ones({1})); }
  Tensor forward(const Tensor& x) {
    const std::lock_guard lock(seen->mutex);
    seen->threads.insert(std::this_thread::get_id());
    seen->samples.insert(x.size(0));
    return x * weight;
  }
  struct Seen {
    std::mutex mutex;
    std::set<std::thread::id> threads;
    std::multiset<std::int64_t> samples;
  };
  std::shared_ptr<Seen> seen = std::make_shared<Seen>();
  Tensor weight;
};
TORCH_MODULE(Witness);

TEST(DataParallel, SharesABatchAmongThreadsThatItKeeps) {
  Witness net;
  DataParallel model(net, {.replicas = 3});
  model(values({8, 2}));  // new replicas are also checked
  for (int step = 0; step < 5; ++step) {
    net->seen->samples.clear();
    model(values({8, 2})).sum().backward();
    EXPECT_THAT(net->seen->samples, ElementsAre(2, 3, 3));
  }
  EXPECT_EQ(net->seen->threads.size(), 3u);
  EXPECT_TRUE(net->seen->threads.contains(std::this_thread::get_id()));
}

TEST(DataParallel, OneReplicaOrOneSampleGoesStraightThrough) {
  Witness net;
  for (const auto& [replicas, samples] : std::vector<std::pair<int, int>>{{1, 8}, {4, 1}, {4, 0}}) {
    net->seen->samples.clear();
    DataParallel model(net, {.replicas = replicas});
    const Tensor output = model(values({samples, 2}));
    EXPECT_THAT(net->seen->samples, ElementsAre(samples));
    EXPECT_EQ(output.grad_fn()->name().find("Lockstep"), std::string::npos);
  }
  DataParallel on_one(net, {.device_ids = {at::kCPU}, .output_device = at::kCPU});
  EXPECT_EQ(on_one(values({8, 2})).size(0), 8);
  EXPECT_EQ(net->seen->threads.size(), 1u);
}

TEST(DataParallel, BatchesOfAnySize) {
  for (const int replicas : {2, 3, 5}) {
    Mlp net;
    DataParallel model(net, {.replicas = replicas});
    for (const std::int64_t samples : {1, 2, 3, 7, 10, 4}) {
      expect_like_its_module(model, values({samples, 6}));
    }
  }
}

TEST(DataParallel, CutsAlongAnotherDimension) {
  struct SumOfFirst : torch::nn::Module {
    SumOfFirst() { weight = register_parameter("weight", torch::ones({3, 1, 2})); }
    Tensor forward(const Tensor& x) { return x * weight; }
    Tensor weight;
  };
  SumOfFirst net;
  DataParallel model(net, {.replicas = 2, .dim = 1, .trust_constructors = true});
  EXPECT_EQ(model(values({3, 5, 2})).sizes(), (std::vector<std::int64_t>{3, 5, 2}));
  expect_like_its_module(model, values({3, 5, 2}));
}

// Every kind of argument and of output at once.
struct ManyImpl : torch::nn::Module {
  ManyImpl() { linear = register_module("linear", torch::nn::Linear(2, 2)); }
  using Output = std::tuple<Tensor, std::vector<Tensor>, std::map<std::string, Tensor>, int>;
  Output forward(const Tensor& x, Tensor& other, const std::vector<Tensor>& more, double factor,
                 const std::string& name, std::shared_ptr<int> anything, Tensor scale = {}) {
    const Tensor y = linear(x + other + more.at(1)) * factor * *anything;
    if (scale.defined()) return {y * scale, {y, -y}, {{name, y.sum()}}, int(x.size(0))};
    return {y, {y, -y}, {{name, y.sum()}}, int(x.size(0))};
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Many);

TEST(DataParallel, TakesAnyArgumentsAndReturnsAnyStructureOfTensors) {
  Many net;
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  const Tensor x = values({5, 2});
  Tensor other = values({5, 2}, 1);
  const std::vector<Tensor> more{Tensor(), values({5, 2}, 2)};
  const auto anything = std::make_shared<int>(3);
  const auto expected = net->forward(x, other, more, 2, "sums", anything);
  const auto [y, both, sums, samples] = model(x, other, more, 2, "sums", anything);
  expect_close(y, std::get<0>(expected), "y");
  expect_close(both.at(0), std::get<1>(expected)[0], "both 0");
  expect_close(both.at(1), std::get<1>(expected)[1], "both 1");
  ASSERT_EQ(sums.at("sums").sizes(), (std::vector<std::int64_t>{2}));  // one for each replica
  expect_close(sums.at("sums").sum(), std::get<2>(expected).at("sums"), "sums");
  EXPECT_EQ(samples, 3);  // from replica 0
  EXPECT_EQ(*anything, 3);

  // Each output leads back to the parameters, together or alone.
  const auto gradient = [&](const Tensor& loss) {
    return torch::autograd::grad({loss}, {net->linear->weight}, {}, true)[0];
  };
  const auto of_module = gradient(std::get<0>(expected).square().sum());
  expect_close(gradient(y.square().sum()), of_module, "y");
  expect_close(gradient(both[0].square().sum() + both[1].square().sum()), 2 * of_module, "both");
  expect_close(gradient(sums.at("sums").sum()), gradient(std::get<2>(expected).at("sums")), "sums");

  // A tensor without dimensions goes to every replica.
  const auto scaled = model(x, other, more, 2, "sums", anything, torch::full({}, 3.));
  expect_close(std::get<0>(scaled), 3 * std::get<0>(expected), "scaled");
}

TEST(DataParallel, ReturnsWhatNeedsNoGradientWithoutAHistory) {
  struct Labels : torch::nn::Module {
    Labels() { linear = register_module("linear", torch::nn::Linear(2, 3)); }
    std::pair<Tensor, Tensor> forward(const Tensor& x) {
      const Tensor y = linear(x);
      return {y, y.argmax(1)};
    }
    torch::nn::Linear linear{nullptr};
  };
  Labels net;
  DataParallel model(net, {.replicas = 2, .trust_constructors = true});
  const auto [y, labels] = model(values({4, 2}));
  EXPECT_TRUE(y.requires_grad());
  EXPECT_FALSE(labels.requires_grad());
  EXPECT_TRUE(torch::equal(labels, y.argmax(1)));
}

TEST(DataParallel, LetsInputsBeChangedInPlace) {
  struct InPlace : torch::nn::Module {
    InPlace() { weight = register_parameter("weight", torch::full({2}, 3.)); }
    Tensor forward(Tensor x) { return x.mul_(weight); }
    Tensor weight;
  };
  for (const bool with_gradient : {false, true}) {
    InPlace net;
    DataParallel model(net, {.replicas = 2, .trust_constructors = true});
    const Tensor leaf = values({4, 2}).requires_grad_(with_gradient);
    const Tensor input = leaf * 2;
    const Tensor output = model(input);
    {
      const torch::NoGradGuard no_grad;
      input.zero_();  // nor does what the program does to its batch afterwards matter
    }
    output.sum().backward();
    expect_close(net.weight.grad(), (values({4, 2}) * 2).sum(0), "weight");
    if (with_gradient) expect_close(leaf.grad(), torch::full({4, 2}, 6.), "input");
  }
}

TEST(DataParallel, DoesNotMindWhenItsModelIsGoneBeforeBackward) {
  Mlp net;
  Tensor loss;
  {
    DataParallel model(net, {.replicas = 3});
    loss = model(values({6, 6})).square().mean();
  }
  loss.backward();
  Mlp reference;
  copy_state(*reference, *net);
  reference->forward(values({6, 6})).square().mean().backward();
  expect_same_gradients(*net, *reference);
}

}  // namespace
}  // namespace lockstep::testing
