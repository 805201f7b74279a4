// SPDX-License-Identifier: BSD-3-Clause
// Standardization over ranks, to the same bits for any number of them.
#include "lockstep/data/standardization.h"

#include <bit>
#include <mutex>
#include <set>

#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::set<std::pair<std::uint64_t, std::uint64_t>> bits_on_ranks(const at::Tensor& images,
                                                                int ranks) {
  std::mutex mutex;
  std::set<std::pair<std::uint64_t, std::uint64_t>> bits;
  testing::run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const auto found = measure_standardization(images, *group);
    const std::lock_guard lock(mutex);
    bits.emplace(std::bit_cast<std::uint64_t>(found.mean),
                 std::bit_cast<std::uint64_t>(found.deviation));
  });
  return bits;
}

TEST(Standardization, IsTheSameBitsForAnyNumberOfRanks) {
  torch::manual_seed(3);
  const auto images = torch::randint(0, 256, {101, 7, 5}, torch::kByte);
  const auto alone = bits_on_ranks(images, 1);
  EXPECT_EQ(alone.size(), 1u);
  for (const int ranks : {2, 3, 8}) EXPECT_EQ(bits_on_ranks(images, ranks), alone) << ranks;
  // More ranks than images.
  EXPECT_EQ(bits_on_ranks(images.slice(0, 0, 2), 5), bits_on_ranks(images.slice(0, 0, 2), 1));
}

TEST(Standardization, BringsImagesToMeanZeroAndDeviationOne) {
  torch::manual_seed(4);
  const auto images = torch::randint(0, 200, {64, 28, 28}, torch::kByte);
  testing::run_rank_threads(1, [&](const std::shared_ptr<ProcessGroup>& group) {
    const auto found = measure_standardization(images, *group);
    EXPECT_NEAR(found.mean, images.to(torch::kDouble).mean().item<double>(), 1e-9);
    EXPECT_NEAR(found.deviation, images.to(torch::kDouble).std(/*unbiased=*/false).item<double>(),
                1e-9);
    const auto standard = found.apply(images);
    EXPECT_EQ(standard.scalar_type(), torch::kFloat);
    EXPECT_EQ(standard.sizes(), images.sizes());
    EXPECT_NEAR(standard.mean().item<double>(), 0, 1e-4);
    EXPECT_NEAR(standard.std().item<double>(), 1, 1e-3);
  });
}

TEST(Standardization, OfImagesThatAreAllAlikeIsFinite) {
  testing::run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto images = torch::full({4, 3, 3}, 7, torch::kByte);
    const auto found = measure_standardization(images, *group);
    EXPECT_EQ(found.mean, 7);
    EXPECT_EQ(found.deviation, 1);
    EXPECT_EQ(found.apply(images).abs().sum().item<float>(), 0);
  });
}

TEST(Standardization, RefusesOtherTypesAndNothing) {
  testing::run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT(
        [&] {
          measure_standardization(torch::rand({2, 2}), *group);
        },
        ThrowsMessage<UsageError>(HasSubstr("rank 0 of 1: images of type Float with 4")));
    EXPECT_THROW(measure_standardization(torch::empty({0, 28, 28}, torch::kByte), *group),
                 UsageError);
  });
}

}  // namespace
}  // namespace lockstep
