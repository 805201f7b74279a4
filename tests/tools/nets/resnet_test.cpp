// SPDX-License-Identifier: BSD-3-Clause
// ResNets: torchvision's names and sizes. What they compute is compared in
// tests/tools/recipes/initial_weights_test.cpp and by their trainings.
#include "tools/nets/resnet.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

namespace lockstep::nets {
namespace {

using ::testing::IsSupersetOf;

std::int64_t count_parameters(const torch::nn::Sequential& net) {
  std::int64_t count = 0;
  for (const auto& parameter : net->parameters()) count += parameter.numel();
  return count;
}

TEST(Resnet, HasTorchvisionsNamesAndSizes) {
  const auto net = resnet18(1000);
  EXPECT_EQ(count_parameters(net), 11'689'512);
  EXPECT_EQ(net->named_parameters().size(), 62u);
  EXPECT_EQ(net->named_buffers().size(), 60u);
  EXPECT_THAT(net->named_parameters().keys(),
              IsSupersetOf({"conv1.weight", "bn1.bias", "layer1.0.conv1.weight",
                            "layer2.0.downsample.0.weight", "layer2.0.downsample.1.bias",
                            "layer4.1.bn2.weight", "fc.weight", "fc.bias"}));
  EXPECT_THAT(net->named_buffers().keys(),
              IsSupersetOf({"bn1.running_mean", "layer2.0.downsample.1.num_batches_tracked"}));
  const auto deep = resnet50(1000);
  EXPECT_EQ(count_parameters(deep), 25'557'032);
  EXPECT_EQ(deep->named_parameters().size(), 161u);
  EXPECT_THAT(deep->named_parameters().keys(),
              IsSupersetOf({"layer1.0.downsample.0.weight", "layer4.2.conv3.weight"}));
}

TEST(Resnet, TakesSmallGreyImages) {
  auto net = resnet18(10, 1);
  EXPECT_EQ(count_parameters(net), 11'175'370);
  EXPECT_EQ(net->forward(torch::randn({2, 1, 28, 28})).sizes(), at::IntArrayRef({2, 10}));
}

}  // namespace
}  // namespace lockstep::nets
