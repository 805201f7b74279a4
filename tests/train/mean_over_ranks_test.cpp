// SPDX-License-Identifier: BSD-3-Clause
// Means over ranks with different numbers of samples.
#include "tests/support/thread_group.h"
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "lockstep/train/over_ranks.h"

namespace lockstep {
namespace {

using testing::run_rank_threads;

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
