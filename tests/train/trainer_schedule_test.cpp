// SPDX-License-Identifier: BSD-3-Clause
// Learning rates of a Trainer: schedules, which learn the number of steps, and the plateau.
#include <cstdint>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/train/mlp_training.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using testing::Batch;
using testing::batches;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::mse;
using testing::new_net;
using torch::optim::SGDOptions;

TEST(Trainer, FollowsTheSchedule) {
  const auto alone = make_self_group();
  Mlp net = new_net();
  Trainer trainer(net, alone,
                  {.epochs = 2, .lr_schedule = optim::StepLR{.step_size = 6, .gamma = 0.5}});
  trainer.optimize_with<torch::optim::SGD>(SGDOptions(0.1));
  std::vector<double> rates;
  trainer.fit(batches(0, 1), mse, {.after_step = [&](const StepSummary& step) {
                if (step.step == 6 || step.step == 7) rates.push_back(step.learning_rate);
              }});
  EXPECT_THAT(rates, ElementsAre(0.1, 0.05));
}

// With three steps an epoch: six batches, two in a step.
TEST(Trainer, TellsTheScheduleTheNumberOfSteps) {
  std::vector<std::int64_t> told;
  Trainer trainer(new_net(), make_self_group(),
                  {.epochs = 4, .accumulation_steps = 2, .lr_schedule = [&](std::int64_t steps) {
                     told.push_back(steps);
                     return optim::CosineAnnealingLR{.T_max = steps};
                   }});
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  trainer.fit(batches(0, 1), mse);
  EXPECT_THAT(told, Each(12));
  EXPECT_NEAR(trainer.optimizer().param_groups()[0].options().get_lr(), 0, 1e-12);
  told.clear();
  trainer.fit(batches(0, 1), mse, {.batches_per_epoch = 6});
  EXPECT_THAT(told, Each(24)) << "a second fit() goes on";
}

TEST(Trainer, ASchedulesStepsNeedABatchCount) {
  const std::vector<Batch> data = batches(0, 1);
  struct Endless {
    auto begin() const { return data.begin(); }
    auto end() const { return data.end(); }
    const std::vector<Batch>& data;
  };
  Trainer trainer(new_net(), make_self_group(), {.lr_schedule = [](std::int64_t steps) {
                    return optim::CosineAnnealingLR{.T_max = steps};
                  }});
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.fit(Endless{data}, mse); }),
              HasSubstr("does not say how many batches an epoch has; give fit() the .sampler"));
}

// Two epochs of six steps.
TEST(Trainer, AScheduleThatEndsBeforeTheTrainingIsRefusedAtItsStart) {
  for (const std::int64_t steps : {11, 12}) {
    Trainer trainer(
        new_net(), make_self_group(),
        {.epochs = 2, .lr_schedule = optim::OneCycleLR{.max_lr = {0.1}, .total_steps = steps}});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1).momentum(0.9));
    std::int64_t done = 0;
    const auto fit = [&] {
      trainer.fit(batches(0, 1), mse, {.after_step = [&](const StepSummary&) { ++done; }});
    };
    if (steps == 12) {
      fit();
    } else {
      EXPECT_THAT(message_of<UsageError>(fit),
                  HasSubstr("[Trainer] rank 0 of 1: lr_schedule ends at step 11, and training at "
                            "step 12; set .total_steps"));
    }
    EXPECT_EQ(done, steps == 12 ? 12 : 0);
  }
}

TEST(Trainer, AScheduleWithRatesOfItsOwnCannotBeScaled) {
  Trainer trainer(new_net(), make_self_group(),
                  {.lr_scale = 2, .lr_schedule = [](std::int64_t steps) {
                     return optim::SequentialLR{
                         .schedulers = {optim::LinearLR{},
                                        optim::OneCycleLR{.max_lr = {0.1}, .total_steps = steps}},
                         .milestones = {1}};
                   }});
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.fit(batches(0, 1), mse); }),
              HasSubstr("lr_scale is 2, which a OneCycleLR ignores: its rates are its own; leave "
                        "lr_scale out, and multiply .max_lr"));
}

TEST(Trainer, ReducesTheRateOnAPlateau) {
  Mlp net = new_net();
  Trainer trainer(
      net, make_self_group(),
      {.epochs = 4,
       .reduce_lr_on_plateau = optim::ReduceLROnPlateauOptions{.factor = 0.5, .patience = 1}});
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.fit(batches(0, 1), mse); }),
              HasSubstr(".reduce_lr_on_plateau needs the function evaluate"));
  std::vector<double> rates;
  trainer.fit(batches(0, 1), mse,
              {.after_step =
                   [&](const StepSummary& step) {
                     if (step.step % 6 == 0) rates.push_back(step.learning_rate);
                   },
               .evaluate = [] { return 0.25; }});
  EXPECT_THAT(rates, ElementsAre(0.1, 0.1, 0.1, 0.05));
}

}  // namespace
}  // namespace lockstep
