// SPDX-License-Identifier: BSD-3-Clause
// How gradients are distributed over buckets.
#include "lockstep/parallel/bucket_plan.h"

#include <numeric>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;

constexpr auto kFloat = c10::ScalarType::Float;
constexpr auto kHalf = c10::ScalarType::Half;

std::vector<PlannedBucket> plan(const std::vector<GradientSize>& gradients,
                                const std::vector<int>& order, BucketLimits limits) {
  return plan_buckets(gradients, order, limits);
}

TEST(BucketPlan, NothingGivesNoBucket) {
  EXPECT_TRUE(plan({}, {}, {}).empty());
}

TEST(BucketPlan, FollowsTheOrderOfReadiness) {
  const auto buckets = plan({{10}, {20}, {30}}, {2, 0, 1}, {});
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(2, 0, 1));
}

TEST(BucketPlan, AlignsGradientsTo64BytesAndAppendsATrailer) {
  const auto buckets = plan({{1}, {17}, {16}}, {0, 1, 2}, {});
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_THAT(buckets[0].offsets, ElementsAre(0, 16, 48));
  EXPECT_EQ(buckets[0].trailer, 64);
  EXPECT_EQ(buckets[0].elements, 80);
}

TEST(BucketPlan, AlignmentCountsInBytesOfTheType) {
  const auto buckets = plan({{1, kHalf}, {1, kHalf}}, {0, 1}, {});
  EXPECT_THAT(buckets.at(0).offsets, ElementsAre(0, 32));
}

TEST(BucketPlan, TheFirstBucketIsSmallerThanTheOthers) {
  const std::vector<GradientSize> gradients(10, {100});  // 400 bytes each
  std::vector<int> order(10);
  std::iota(order.begin(), order.end(), 0);
  const auto buckets = plan(gradients, order, {.first = 400, .others = 1200});
  ASSERT_EQ(buckets.size(), 4u);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(0));
  EXPECT_THAT(buckets[1].parameters, ElementsAre(1, 2, 3));
  EXPECT_THAT(buckets[2].parameters, ElementsAre(4, 5, 6));
  EXPECT_THAT(buckets[3].parameters, ElementsAre(7, 8, 9));
}

TEST(BucketPlan, AGradientLargerThanTheLimitIsNotCut) {
  const auto buckets = plan({{1000}, {1}}, {0, 1}, {.first = 4, .others = 4});
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(0));
  EXPECT_GE(buckets[0].elements, 1001);
}

TEST(BucketPlan, NoLimitPutsEachGradientInItsOwn) {
  EXPECT_EQ(plan({{1}, {0}, {3}}, {0, 1, 2}, {.first = 0, .others = 0}).size(), 3u);
}

TEST(BucketPlan, TypesAndDevicesDoNotShareABucket) {
  const c10::Device gpu(c10::kCUDA, 0);
  const auto buckets =
      plan({{4, kFloat}, {4, kHalf}, {4, kFloat, gpu}, {4, kFloat}}, {0, 1, 2, 3}, {});
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_THAT(buckets[0].parameters, ElementsAre(1));
  EXPECT_THAT(buckets[1].parameters, ElementsAre(2));
  EXPECT_THAT(buckets[2].parameters, ElementsAre(0, 3));  // complete when 3 is
}

TEST(BucketPlan, HoldsEveryParameterOnceWithoutOverlap) {
  std::vector<GradientSize> gradients;
  for (int i = 0; i < 200; ++i) gradients.push_back({(i * 37) % 500, i % 3 ? kFloat : kHalf});
  std::vector<int> order(gradients.size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::vector<int> seen(gradients.size(), 0);
  for (const auto& bucket : plan(gradients, order, {.first = 1000, .others = 5000})) {
    std::int64_t end = 0;
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const auto parameter = static_cast<std::size_t>(bucket.parameters[i]);
      ++seen[parameter];
      EXPECT_GE(bucket.offsets[i], end);
      end = bucket.offsets[i] + gradients[parameter].elements;
    }
    EXPECT_GE(bucket.trailer, end);
    EXPECT_GE(bucket.elements,
              bucket.trailer + static_cast<std::int64_t>(bucket.parameters.size()));
  }
  EXPECT_THAT(seen, ::testing::Each(1));
}

}  // namespace
}  // namespace lockstep
