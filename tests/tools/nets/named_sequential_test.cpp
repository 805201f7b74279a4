// SPDX-License-Identifier: BSD-3-Clause
// Sequentials with names: within another one, and cloned.
#include "tools/nets/named_sequential.h"

#include <gmock/gmock.h>
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

}  // namespace
}  // namespace lockstep::nets
