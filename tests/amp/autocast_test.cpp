// SPDX-License-Identifier: BSD-3-Clause
// The types in which operations run within and after the guard.
#include "lockstep/amp/autocast.h"

#include <stdexcept>
#include <string>

#include "tests/parallel/errors.h"
#include "tests/support/test_device.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::test_device;

torch::nn::Linear layer() {
  torch::manual_seed(1);
  torch::nn::Linear layer(4, 3);
  layer->to(test_device());
  return layer;
}

at::Tensor ones(std::int64_t samples) {
  return at::ones({samples, 4}, test_device());
}

TEST(Autocast, RunsLayersInBfloat16) {
  auto net = layer();
  const Autocast autocast(test_device(), at::kBFloat16);
  EXPECT_EQ(net->forward(ones(2)).scalar_type(), at::kBFloat16);
}

TEST(Autocast, ConvertsToBfloat16OnCpusUnlessToldOtherwise) {
  auto net = torch::nn::Linear(4, 3);
  const Autocast autocast(at::kCPU);
  EXPECT_EQ(net->forward(at::ones({2, 4})).scalar_type(), at::kBFloat16);
}

TEST(Autocast, RunsLayersInFloat16WhereLibtorchCan) {
  auto net = layer();
  if (test_device().is_cpu() && !libtorch::kHasHalfOnCpu) {
    EXPECT_THAT(message_of<UsageError>([] { const Autocast autocast(at::kCPU, at::kHalf); }),
                HasSubstr("lacks the kernels for float16 on CPUs"));
    return;
  }
  const Autocast autocast(test_device(), at::kHalf);
  EXPECT_EQ(net->forward(ones(2)).scalar_type(), at::kHalf);
}

TEST(Autocast, EndsWithTheGuard) {
  auto net = layer();
  const auto types = libtorch::autocast_types();
  try {
    const Autocast autocast(at::kCUDA, at::kBFloat16);
    EXPECT_EQ(libtorch::autocast_types().cuda, at::kBFloat16);
    const Autocast inner(at::kCPU);
    throw std::runtime_error("within");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(net->forward(ones(2)).scalar_type(), at::kFloat);
  EXPECT_EQ(libtorch::autocast_types().cuda, types.cuda);
  EXPECT_FALSE(libtorch::is_autocast_enabled(at::kCUDA));
}

TEST(Autocast, CanBeSwitchedOffWithin) {
  auto net = layer();
  const Autocast autocast(test_device(), at::kBFloat16);
  {
    const Autocast off(test_device(), {}, false);
    EXPECT_EQ(net->forward(ones(2)).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(net->forward(ones(2)).scalar_type(), at::kBFloat16);
}

TEST(Autocast, ForgetsConvertedWeights) {
  auto net = layer();
  const at::Tensor input = ones(2);
  const auto forward = [&] {
    const Autocast autocast(test_device(), at::kBFloat16);
    net->forward(input);
    return net->forward(input);  // the second takes the converted weights of the first
  };
  const at::Tensor before = forward();
  {
    const at::NoGradGuard no_grad;
    net->weight.mul_(2);
    net->bias.mul_(2);
  }
  EXPECT_TRUE(at::equal(forward(), before * 2));
}

TEST(Autocast, LeavesParametersAndGradientsInFloat) {
  auto net = layer();
  at::Tensor loss;
  {
    const Autocast autocast(test_device());
    const at::Tensor target = at::zeros({2}, at::TensorOptions(test_device()).dtype(at::kLong));
    loss = torch::nn::functional::cross_entropy(net->forward(ones(2)), target);
  }
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  EXPECT_EQ(net->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(net->weight.grad().scalar_type(), at::kFloat);
}

TEST(Autocast, FollowsIntoDataParallel) {
  const at::Device device = test_device();
  const DataParallelOptions options = device.is_cpu()
                                          ? DataParallelOptions{.replicas = 2}
                                          : DataParallelOptions{.device_ids = {device, device}};
  DataParallel<torch::nn::Linear> model(layer(), options);
  const at::Tensor input = ones(4);
  at::Tensor output;
  {
    const Autocast autocast(test_device(), at::kBFloat16);
    output = model(input);
  }
  EXPECT_EQ(output.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model(input).scalar_type(), at::kFloat);
}

TEST(Autocast, SaysWhatItCannotDo) {
  EXPECT_THAT(message_of<UsageError>([] { const Autocast autocast(at::kCPU, at::kFloat); }),
              HasSubstr("float16 (at::kHalf) or bfloat16 (at::kBFloat16), not to Float"));
  EXPECT_THAT(message_of<UsageError>([] { const Autocast autocast(at::kMeta); }),
              HasSubstr("there is no autocast for meta; give cpu or cuda"));
  EXPECT_FALSE(libtorch::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace lockstep
