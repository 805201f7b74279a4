// SPDX-License-Identifier: BSD-3-Clause
// The predicted memory of ranks, compared with what ranks then take.
#include "tools/bench/memory_plan.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/launch/spawn.h"
#include "tools/bench/step_bench.h"

namespace lockstep::bench {
namespace {

const SpawnOptions kOneThread{.threads = 1, .prefix = false};

MemoryPlan planned(const TrainingStep& step, int ranks) {
  return spawn(
             1, [&](int) { return plan_memory(step, ranks); }, kOneThread)
      .front();
}

// The larger batch makes activations count.
TEST(MemoryPlan, PredictsWhatRanksTake) {
  const Model model = find_model("mlp25m-adam");
  for (const TrainingStep& step :
       {TrainingStep{.model = model, .batch_size = 512, .optimizer = OptimizerKind::fused},
        TrainingStep{.model = model, .optimizer = OptimizerKind::sharded},
        TrainingStep{.model = model, .optimizer = OptimizerKind::one_copy}}) {
    const MemoryPlan plan = planned(step, 2);
    const auto measure = [&](int) {
      return measure_step_memory(init_process_group({.device = at::kCPU}), step, StepMode::ddp);
    };
    const auto measured = static_cast<double>(std::ranges::max(spawn(2, measure, kOneThread)));
    EXPECT_NEAR(static_cast<double>(plan.of_rank()), measured, 0.15 * measured)
        << name(step.optimizer);
  }
}

TEST(MemoryPlan, AddsUpItsParts) {
  const TrainingStep step{.model = find_model("mlp25m-adam"), .optimizer = OptimizerKind::fused};
  const MemoryPlan plan = planned(step, 4);
  constexpr std::int64_t kParameters = 6 * (2048 * 2048 + 2048) * std::int64_t{4};
  EXPECT_EQ(plan.parameters, kParameters);
  EXPECT_EQ(plan.gradients, kParameters);
  EXPECT_GE(plan.state, 2 * kParameters);
  EXPECT_LT(plan.state, 2 * kParameters + 4096);
  EXPECT_EQ(plan.of_all(), 4 * (plan.process + plan.parameters + plan.gradients + plan.state +
                                plan.activations + plan.kept));
  TrainingStep divided_step = step;
  divided_step.optimizer = OptimizerKind::one_copy;
  const MemoryPlan divided = planned(divided_step, 4);
  EXPECT_EQ(divided.parameters, kParameters / 4);
  EXPECT_EQ(divided.gradients, kParameters);
  EXPECT_NEAR(static_cast<double>(divided.state), static_cast<double>(plan.state) / 4, 4096);
}

}  // namespace
}  // namespace lockstep::bench
