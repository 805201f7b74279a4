// SPDX-License-Identifier: BSD-3-Clause
// What ranks draw, and who prints.
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "lockstep/comm/single_process_groups.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep {
namespace {

TEST(SeedEverything, GivesEachRankNumbersOfItsOwn) {
  const auto groups = make_thread_groups(2);
  torch::manual_seed(7);
  const at::Tensor alone = at::rand({4});
  seed_everything(7, *groups[0]);
  EXPECT_TRUE(at::rand({4}).equal(alone));
  seed_everything(7, *groups[1]);
  const at::Tensor rank_1 = at::rand({4});
  EXPECT_FALSE(rank_1.equal(alone));
  torch::manual_seed(8);
  EXPECT_TRUE(at::rand({4}).equal(rank_1));
}

TEST(Print0, PrintsOnRank0Alone) {
  const auto groups = make_thread_groups(2);
  ::testing::internal::CaptureStdout();
  for (const auto& group : groups) print0(*group, "epoch 1");
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "epoch 1\n");
}

}  // namespace
}  // namespace lockstep
