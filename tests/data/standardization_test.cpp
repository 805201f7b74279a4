// SPDX-License-Identifier: BSD-3-Clause
// Standardization over ranks, to the same bits for any number of them.
#include "lockstep/data/standardization.h"

#include <bit>
#include <mutex>
#include <set>

#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/types.h>
#include <torch/utils.h>

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

FeatureStandardization features_of(const at::Tensor& rows, int ranks) {
  std::mutex mutex;
  FeatureStandardization result;
  testing::run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const auto found = measure_feature_standardization(rows, *group);
    const std::lock_guard lock(mutex);
    if (result.mean.defined()) {
      EXPECT_TRUE(at::equal(found.mean, result.mean));
      EXPECT_TRUE(at::equal(found.deviation, result.deviation));
    }
    result = found;
  });
  return result;
}

TEST(FeatureStandardization, IsTheSameBitsForAnyNumberOfRanks) {
  torch::manual_seed(5);
  const auto rows = torch::randn({301, 7}) * 1000;
  const auto alone = features_of(rows, 1);
  for (const int ranks : {2, 3, 8}) {
    const auto together = features_of(rows, ranks);
    EXPECT_TRUE(at::equal(together.mean, alone.mean)) << ranks;
    EXPECT_TRUE(at::equal(together.deviation, alone.deviation)) << ranks;
  }
  // More ranks than rows.
  EXPECT_TRUE(at::equal(features_of(rows.slice(0, 0, 2), 5).mean,
                        rows.slice(0, 0, 2).to(at::kDouble).mean(0)));
}

TEST(FeatureStandardization, BringsEachFeatureToMeanZeroAndDeviationOne) {
  torch::manual_seed(6);
  const auto scales = torch::tensor({1e-3, 1.0, 1e6, 5.0, 0.0, 2.0}, torch::kDouble).view({2, 3});
  // The last dimension's offset is far beyond what float resolves beside the deviation.
  const auto rows = torch::randn({500, 2, 3}, torch::kDouble) * scales + 1e6;
  const auto found = features_of(rows, 2);
  EXPECT_EQ(found.mean.sizes(), scales.sizes());
  const auto standard = found.apply(rows);
  EXPECT_EQ(standard.scalar_type(), torch::kFloat);
  const auto wide = standard.to(torch::kDouble);
  EXPECT_LT(wide.mean(0).abs().max().item<double>(), 1e-5);
  const auto deviations = wide.std(0, /*unbiased=*/false);
  EXPECT_EQ(deviations[1][1].item<double>(), 0);  // all rows are equal
  deviations[1][1] = 1;
  EXPECT_LT((deviations - 1).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(at::equal(found.apply(rows[3]), standard[3]));
}

TEST(FeatureStandardization, OfRowsThatAreAllAlikeHasDeviationOne) {
  // The sum of three times 0.1 is not three times 0.1.
  const auto found = features_of(torch::full({3, 1}, 0.1, torch::kDouble), 1);
  EXPECT_EQ(found.deviation.item<double>(), 1);
}

TEST(FeatureStandardization, TakesTheValuesOfLazilyNegatedRows) {
  const auto negated = torch::_neg_view(torch::arange(8, torch::kDouble)).view({8, 1});
  EXPECT_EQ(features_of(negated, 2).mean.item<double>(), -3.5);
}

TEST(FeatureStandardization, NamesWhatItCannotUse) {
  testing::run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto measure = [&](const at::Tensor& rows) {
      return [&group, rows] { measure_feature_standardization(rows, *group); };
    };
    EXPECT_THAT(measure(torch::empty({0, 3})),
                ThrowsMessage<UsageError>(HasSubstr("rows of type Float with 0 elements")));
    auto rows = torch::zeros({100, 3});
    rows[70][2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_THAT(measure(rows),
                ThrowsMessage<UsageError>(HasSubstr("feature 2 is infinite or NaN")));
  });
}

}  // namespace
}  // namespace lockstep
