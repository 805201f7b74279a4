// SPDX-License-Identifier: BSD-3-Clause
// The mode of a training, its ranks or replicas, and their devices.
#include "tools/recipes/launch_plan.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expect_plan(const LaunchRequest& request, TrainingMode mode, int ranks, bool start_ranks) {
  const LaunchPlan plan = plan_launch(request);
  EXPECT_EQ(plan.mode, mode);
  EXPECT_EQ(plan.ranks, ranks);
  EXPECT_EQ(plan.start_ranks, start_ranks);
}

TEST(LaunchPlan, TrainsHereUnlessMoreRanksAreAskedFor) {
  expect_plan({.default_ranks = 8}, TrainingMode::single, 1, false);
  expect_plan({.ranks = 1}, TrainingMode::single, 1, false);
  expect_plan({.mode = TrainingMode::distributed, .ranks = 1}, TrainingMode::distributed, 1, false);
  expect_plan({.ranks = 3}, TrainingMode::distributed, 3, true);
  expect_plan({.mode = TrainingMode::distributed, .default_ranks = 8}, TrainingMode::distributed, 8,
              true);
}

TEST(LaunchPlan, JoinsALauncher) {
  expect_plan({.world_size = 4, .default_ranks = 8}, TrainingMode::distributed, 4, false);
  expect_plan({.mode = TrainingMode::distributed, .ranks = 4, .world_size = 4},
              TrainingMode::distributed, 4, false);
  expect_plan({.world_size = 1}, TrainingMode::single, 1, false);
  expect_plan({.mode = TrainingMode::distributed, .world_size = 1}, TrainingMode::distributed, 1,
              false);
}

TEST(LaunchPlan, HasReplicasInThisProcess) {
  const auto expect_replicas = [](const LaunchRequest& request, int replicas) {
    expect_plan(request, TrainingMode::data_parallel, 1, false);
    EXPECT_EQ(plan_launch(request).replicas, replicas);
  };
  expect_replicas({.mode = TrainingMode::data_parallel, .default_ranks = 8}, 8);
  expect_replicas({.mode = TrainingMode::data_parallel, .ranks = 3}, 3);
  expect_replicas({.mode = TrainingMode::data_parallel, .ranks = 3, .world_size = 1}, 3);
}

TEST(LaunchPlan, RefusesContradictions) {
  EXPECT_THAT([] { plan_launch({.mode = TrainingMode::data_parallel, .world_size = 2}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("--mode dp"), HasSubstr("WORLD_SIZE=2"))));
  EXPECT_THAT([] { plan_launch({.ranks = 3, .world_size = 2}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("--ranks 3"), HasSubstr("WORLD_SIZE=2"))));
  EXPECT_THAT([] { plan_launch({.mode = TrainingMode::single, .ranks = 2}); },
              ThrowsMessage<UsageError>(HasSubstr("--ranks 2")));
  EXPECT_THAT([] { plan_launch({.mode = TrainingMode::single, .world_size = 2}); },
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

TEST(ChooseDevice, ReadsWhatIsGiven) {
  EXPECT_EQ(choose_device({}, 0, 4), std::nullopt);
  EXPECT_EQ(choose_device("cpu", 3, 0), at::Device(at::kCPU));
  EXPECT_EQ(choose_device("cuda", 2, 4), at::Device(at::kCUDA, 2));
  EXPECT_EQ(choose_device("cuda:1", 3, 4), at::Device(at::kCUDA, 1));
}

TEST(ChooseDevice, RefusesAGpuThatIsNotThere) {
  EXPECT_THAT(
      [] { choose_device("cuda", 0, 0); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("--device cuda"), HasSubstr("sees 0 GPUs"))));
  EXPECT_THAT(
      [] { choose_device("cuda", 1, 1); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("local rank 1"), HasSubstr("sees 1 GPU;"))));
  EXPECT_THROW(choose_device("cuda:4", 0, 4), UsageError);
}

TEST(ChooseDevice, RefusesOtherTexts) {
  for (const char* text :
       {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    EXPECT_THAT([&] { choose_device(text, 0, 4); },
                ThrowsMessage<UsageError>(HasSubstr("there is no such device")))
        << text;
  }
}

}  // namespace
}  // namespace lockstep
