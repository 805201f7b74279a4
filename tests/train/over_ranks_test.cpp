// SPDX-License-Identifier: BSD-3-Clause
// The numbers that ranks draw, the rank that prints, and means over different numbers of samples.
#include "lockstep/train/over_ranks.h"

#include <cmath>

#include "tests/support/thread_group.h"
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "lockstep/comm/init_process_group.h"

namespace lockstep {
namespace {

using testing::run_rank_threads;

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

TEST(MeanOverRanks, CountsEverySampleOnce) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    // Rank r has r + 1 samples of value r, and none for the last entry.
    const double rank = group->rank();
    const at::Tensor sums = at::tensor({rank * (rank + 1), 0.0}, at::kDouble);
    const at::Tensor samples = at::tensor({rank + 1, 0.0}, at::kDouble);
    const at::Tensor means = mean_over_ranks(sums, samples, *group);
    EXPECT_DOUBLE_EQ(means[0].item<double>(), (0 * 1 + 1 * 2 + 2 * 3) / 6.0);
    EXPECT_TRUE(std::isnan(means[1].item<double>()));
  });
}

}  // namespace
}  // namespace lockstep
