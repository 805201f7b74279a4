// SPDX-License-Identifier: BSD-3-Clause
// Sequentials with names: within another one, cloned, and computed again in backward.
#include "tools/nets/named_sequential.h"

#include <gmock/gmock.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace lockstep::nets {
namespace {

using ::testing::ElementsAre;

TEST(NamedSequential, IsPartOfAnotherOneAndKeepsItsNamesInAClone) {
  NamedSequential inner;
  inner->push_back("first", torch::nn::Linear(3, 4));
  inner->push_back("second", torch::nn::Linear(4, 2));
  auto net = NamedSequentialImpl::make();
  net->push_back("inner", inner);
  net->push_back("relu", torch::nn::ReLU());

  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_THAT(copy->named_parameters().keys(),
              ElementsAre("inner.first.weight", "inner.first.bias", "inner.second.weight",
                          "inner.second.bias"));
  const at::Tensor input = torch::randn({5, 3});
  EXPECT_TRUE(torch::equal(copy->forward(input), net->forward(input)));
  // It shares no memory.
  const torch::NoGradGuard no_grad;
  copy->parameters()[0].zero_();
  EXPECT_FALSE(torch::equal(copy->parameters()[0], net->parameters()[0]));
}

struct CountedImpl : torch::nn::Cloneable<CountedImpl> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& input) {
    ++calls;
    return input.exp();
  }
  int calls = 0;
};
TORCH_MODULE(Counted);

TEST(NamedSequential, ComputesItsModulesAgainInBackward) {
  NamedSequential blocks;
  blocks->push_back("first", Counted());
  blocks->push_back("second", Counted());
  auto net = NamedSequentialImpl::make();
  net->push_back("stem", Counted());
  net->push_back("blocks", blocks);
  recompute_blocks(*net);
  const at::Tensor input = torch::ones({2}).requires_grad_();
  const auto calls_of = [](torch::nn::Module& module) {
    std::vector<int> calls;
    for (const auto& child : module.modules()) {
      if (const auto* const counted = child->as<CountedImpl>()) calls.push_back(counted->calls);
    }
    return calls;
  };
  const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  for (const auto& each : {net.ptr(), copy}) {
    each->forward(input).sum().backward();
    EXPECT_THAT(calls_of(*each), ElementsAre(1, 2, 2));
  }
}

}  // namespace
}  // namespace lockstep::nets
