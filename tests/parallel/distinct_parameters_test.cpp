// SPDX-License-Identifier: BSD-3-Clause
// Tied weights under the names that Python lists them under.
#include "lockstep/parallel/distinct_parameters.h"

#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/models.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const NamedTensor& named : distinct_named_parameters(module)) names.push_back(named.name);
  return names;
}

TEST(DistinctParameters, ListATensorOnceUnderItsFirstName) {
  testing::Tied net;
  ASSERT_EQ(net->parameters().size(), 4u);
  EXPECT_THAT(names_of(*net), ElementsAre("weight", "bias", "in.bias"));
  const std::vector<at::Tensor> tensors = distinct_parameters(*net);
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_TRUE(tensors[0].is_same(net->in->weight));
}

TEST(DistinctParameters, ListAModuleOnceThatIsRegisteredTwice) {
  torch::nn::Module net;
  const torch::nn::Linear layer(2, 2);
  net.register_module("first", layer.ptr());
  net.register_module("second", layer.ptr());
  EXPECT_THAT(names_of(net), ElementsAre("first.weight", "first.bias"));
}

TEST(DistinctParameters, TensorsThatOnlyShareMemoryAreDifferent) {
  torch::nn::Module net;
  const at::Tensor one = net.register_parameter("one", torch::ones({2}));
  net.register_parameter("other", one.detach());
  EXPECT_THAT(names_of(net), ElementsAre("one", "other"));
}

}  // namespace
}  // namespace lockstep
