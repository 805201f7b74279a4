// SPDX-License-Identifier: BSD-3-Clause
// The measurement of training steps, and its models.
#include "tools/bench/step_bench.h"

#include "tests/support/thread_group.h"
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"

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
      EXPECT_EQ(rows[1].mode, StepMode::floor);
      EXPECT_EQ(rows[2].mode, StepMode::ddp);
    });
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
  // Of each layer 12 matrices of the width squared, their biases, two normalizations.
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
