// SPDX-License-Identifier: BSD-3-Clause
// The measurement of training steps, and its models.
#include "tools/bench/step_bench.h"

#include "tests/support/thread_group.h"
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::bench {
namespace {

TEST(StepBench, MeasuresEachMode) {
  for (const bool set_to_none : {false, true}) {
    testing::run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const StepRows rows =
          measure_steps(group, {.model = find_model("linear"), .set_to_none = set_to_none});
      for (const StepRow& row : rows) {
        EXPECT_EQ(row.ranks, row.mode == StepMode::single ? 1 : 2);
        EXPECT_GT(row.us_p10, 0);
        EXPECT_GE(row.us_median, row.us_p10);
        EXPECT_GE(row.us_p90, row.us_median);
      }
      ASSERT_EQ(rows.size(), 3);
      EXPECT_EQ(rows[0].mode, StepMode::single);
      EXPECT_EQ(rows[1].mode, StepMode::floor);
      EXPECT_EQ(rows[2].mode, StepMode::ddp);
    });
  }
}

TEST(StepBench, MeasuresEachModeWithEachOptimizer) {
  testing::run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StepRows rows =
        measure_steps(group, {.model = find_model("linear")},
                      {.optimizers = {OptimizerKind::fused, OptimizerKind::torch}});
    ASSERT_EQ(rows.size(), 6);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].optimizer, i < 3 ? OptimizerKind::fused : OptimizerKind::torch);
      EXPECT_EQ(rows[i].mode, static_cast<StepMode>(i % 3));
      EXPECT_GT(rows[i].us_median, 0);
    }
  });
}

TEST(StepBench, AShardedOptimizerTrainsTogetherOnly) {
  testing::run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StepRows rows =
        measure_steps(group, {.model = find_model("linear")},
                      {.optimizers = {OptimizerKind::sharded, OptimizerKind::divided}});
    ASSERT_EQ(rows.size(), 2);
    EXPECT_EQ(rows[0].optimizer, OptimizerKind::sharded);
    EXPECT_EQ(rows[1].optimizer, OptimizerKind::divided);
    for (const StepRow& row : rows) {
      EXPECT_EQ(row.mode, StepMode::ddp);
      EXPECT_GT(row.us_median, 0);
    }
  });
}

TEST(StepBench, MeasuresDdpWithEachCommHook) {
  testing::run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StepRows rows = measure_steps(group, {.model = find_model("linear")},
                                        {.comm_hooks = {CommHookKind::bf16, CommHookKind::none}});
    ASSERT_EQ(rows.size(), 4);
    EXPECT_EQ(rows[2].mode, StepMode::ddp);
    EXPECT_EQ(rows[2].comm_hook, CommHookKind::bf16);
    EXPECT_EQ(rows[3].mode, StepMode::ddp);
    EXPECT_EQ(rows[3].comm_hook, CommHookKind::none);
    for (const StepRow& row : rows) EXPECT_GT(row.us_median, 0);
  });
}

TEST(StepBench, MeasuresEachModeInEachType) {
  testing::run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const StepRows rows = measure_steps(group, {.model = find_model("linear")},
                                        {.amps = {AmpKind::none, AmpKind::bf16}});
    ASSERT_EQ(rows.size(), 6);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(rows[i].amp, i < 3 ? AmpKind::none : AmpKind::bf16);
      EXPECT_GT(rows[i].us_median, 0);
    }
  });
}

TEST(Models, HaveBothOptimizers) {
  for (const Model& model : all_models()) {
    const at::Tensor parameter = torch::ones({2}, torch::requires_grad());
    const auto fused = model.make_optimizer({{parameter}}, OptimizerKind::fused);
    const auto libtorchs = model.make_optimizer({{parameter}}, OptimizerKind::torch);
    const auto is_fused = [](torch::optim::Optimizer* optimizer) {
      return dynamic_cast<optim::SGD*>(optimizer) != nullptr ||
             dynamic_cast<optim::Adam*>(optimizer) != nullptr;
    };
    EXPECT_TRUE(is_fused(fused.get())) << model.name;
    EXPECT_FALSE(is_fused(libtorchs.get())) << model.name;
    EXPECT_EQ(fused->defaults().get_lr(), libtorchs->defaults().get_lr()) << model.name;
    const auto* one = dynamic_cast<torch::optim::SGDOptions*>(&fused->defaults());
    const auto* other = dynamic_cast<torch::optim::SGDOptions*>(&libtorchs->defaults());
    ASSERT_EQ(one == nullptr, other == nullptr) << model.name;
    if (one != nullptr) {
      EXPECT_EQ(one->momentum(), other->momentum()) << model.name;
    }
  }
}

TEST(StepBench, PeakMemoryHoldsWeightsAndGradients) {
  const auto group = init_process_group();
  const TrainingStep bench{.model = find_model("mlp25m")};
  constexpr std::int64_t kWeights = 6 * (2048 * 2048 + 2048) * 4;
  const std::int64_t peak = measure_step_memory(group, bench, StepMode::single);
  EXPECT_GT(peak, 2 * kWeights);
  EXPECT_LT(peak, 4 * kWeights);
}

TEST(Models, HaveTheParametersThatTheyNameThemselvesFor) {
  const auto count = [](const std::string& name) {
    std::int64_t count = 0;
    for (const auto& parameter : find_model(name).make_net()->parameters()) {
      count += parameter.numel();
    }
    return count;
  };
  EXPECT_EQ(count("linear"), 2);
  EXPECT_EQ(count("mlp"), 203'530);
  EXPECT_EQ(count("mlp25m"), 25'178'112);
  // torchvision's has 11,689,512 for 1,000 classes instead of 10.
  EXPECT_EQ(count("resnet18"), 11'689'512 - 990 * 513);
  EXPECT_EQ(count("resnet50"), 25'557'032 - 990 * 2049);
  // Each layer has 12 matrices of the width squared, their biases, and two normalizations.
  EXPECT_EQ(count("transformer"), 6 * (12 * 512 * 512 + 9 * 512 + 4 * 512) + 2 * 512 + 10 * 513);
}

TEST(Models, TakeTheirBatch) {
  for (const Model& model : all_models()) {
    const auto loss =
        model.loss(model.make_net()->forward(model.make_input(5)), model.make_target(5));
    EXPECT_EQ(loss.numel(), 1) << model.name;
    EXPECT_EQ(model.make_input(5).size(0), 5) << model.name;
  }
  EXPECT_THROW(find_model("resnet1000"), UsageError);
}

TEST(Models, CanBeDistributedAndReplicated) {
  for (const Model& model : all_models()) {
    EXPECT_NO_THROW(DistributedDataParallel(model.make_net(), make_self_group())) << model.name;
    EXPECT_NO_THROW(DataParallel(model.make_net(), {.replicas = 2})) << model.name;
  }
}

// libtorch's data_parallel takes no others.
TEST(Models, CanBeCloned) {
  for (const Model& model : all_models()) {
    torch::nn::Sequential net = model.make_net();
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    const at::Tensor input = model.make_input(2);
    net->eval();
    copy->eval();
    EXPECT_TRUE(torch::equal(net->forward(input), copy->forward(input))) << model.name;
  }
}

}  // namespace
}  // namespace lockstep::bench
