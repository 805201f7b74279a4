// SPDX-License-Identifier: BSD-3-Clause
// Which mode trains, and on which ranks or replicas.
#include "tools/recipes/launch_plan.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expect_plan(const LaunchRequest& request, TrainMode mode, int ranks, bool start_ranks) {
  const LaunchPlan plan = plan_launch(request);
  EXPECT_EQ(plan.mode, mode);
  EXPECT_EQ(plan.ranks, ranks);
  EXPECT_EQ(plan.start_ranks, start_ranks);
}

TEST(LaunchPlan, TrainsHereUnlessMoreRanksAreAskedFor) {
  expect_plan({.default_ranks = 8}, TrainMode::single, 1, false);
  expect_plan({.ranks = 1}, TrainMode::single, 1, false);
  expect_plan({.mode = TrainMode::ddp, .ranks = 1}, TrainMode::ddp, 1, false);
  expect_plan({.ranks = 3}, TrainMode::ddp, 3, true);
  expect_plan({.mode = TrainMode::ddp, .default_ranks = 8}, TrainMode::ddp, 8, true);
}

TEST(LaunchPlan, JoinsALauncher) {
  expect_plan({.world_size = 4, .default_ranks = 8}, TrainMode::ddp, 4, false);
  expect_plan({.mode = TrainMode::ddp, .ranks = 4, .world_size = 4}, TrainMode::ddp, 4, false);
  expect_plan({.world_size = 1}, TrainMode::single, 1, false);
  expect_plan({.mode = TrainMode::ddp, .world_size = 1}, TrainMode::ddp, 1, false);
}

TEST(LaunchPlan, HasReplicasInThisProcess) {
  const auto expect_replicas = [](const LaunchRequest& request, int replicas) {
    expect_plan(request, TrainMode::dp, 1, false);
    EXPECT_EQ(plan_launch(request).replicas, replicas);
  };
  expect_replicas({.mode = TrainMode::dp, .default_ranks = 8}, 8);
  expect_replicas({.mode = TrainMode::dp, .ranks = 3}, 3);
  expect_replicas({.mode = TrainMode::dp, .ranks = 3, .world_size = 1}, 3);
}

TEST(LaunchPlan, RefusesContradictions) {
  EXPECT_THAT([] { plan_launch({.mode = TrainMode::dp, .world_size = 2}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("--mode dp"), HasSubstr("WORLD_SIZE=2"))));
  EXPECT_THAT([] { plan_launch({.ranks = 3, .world_size = 2}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("--ranks 3"), HasSubstr("WORLD_SIZE=2"))));
  EXPECT_THAT([] { plan_launch({.mode = TrainMode::single, .ranks = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("--ranks 2")));
  EXPECT_THAT([] { plan_launch({.mode = TrainMode::single, .world_size = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("WORLD_SIZE=2")));
  EXPECT_THROW(plan_launch({.ranks = 0}), UsageError);
}

TEST(ThreadsForReplicas, AreAsManyForEach) {
  EXPECT_EQ(threads_for_replicas(2, 2), 1);
  EXPECT_EQ(threads_for_replicas(3, 2), 1);
  EXPECT_EQ(threads_for_replicas(4, 2), 4);
  EXPECT_EQ(threads_for_replicas(9, 4), 8);
  EXPECT_EQ(threads_for_replicas(2, 8), 1);
  EXPECT_EQ(threads_for_replicas(4, 1), 4);
}

}  // namespace
}  // namespace lockstep
