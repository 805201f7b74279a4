// SPDX-License-Identifier: BSD-3-Clause
// The generated points of the recipe `linear`.
#include "lockstep/data/linear_dataset.h"

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

TEST(LinearDataset, LiesOnItsLine) {
  LinearDataset set;
  EXPECT_EQ(set.size(), 10'000u);
  const auto noise = set.targets() - 2 * set.inputs() - 3;
  EXPECT_NEAR(noise.mean().item<double>(), 0, 0.005);
  EXPECT_NEAR(noise.std().item<double>(), 0.1, 0.005);
  EXPECT_NEAR(set.inputs().mean().item<double>(), 0, 0.05);
  EXPECT_NEAR(set.inputs().std().item<double>(), 1, 0.05);
  const auto example = set.get(7);
  EXPECT_TRUE(example.data.equal(set.inputs()[7]));
  EXPECT_TRUE(example.target.equal(set.targets()[7]));
}

TEST(LinearDataset, FollowsFromItsSeedAlone) {
  LinearDataset first({.size = 100, .seed = 4});
  torch::manual_seed(99);
  (void)torch::rand({3});
  LinearDataset again({.size = 100, .seed = 4});
  LinearDataset other({.size = 100, .seed = 5});
  EXPECT_TRUE(first.inputs().equal(again.inputs()));
  EXPECT_TRUE(first.targets().equal(again.targets()));
  EXPECT_FALSE(first.inputs().equal(other.inputs()));
}

TEST(LinearDataset, RefusesANegativeSize) {
  EXPECT_THROW(LinearDataset({.size = -1}), UsageError);
  EXPECT_EQ(LinearDataset({.size = 0}).size(), 0u);
}

}  // namespace
}  // namespace lockstep
