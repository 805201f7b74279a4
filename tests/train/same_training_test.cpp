// SPDX-License-Identifier: BSD-3-Clause
// Trainings whose options differ between ranks.
#include "lockstep/train/same_training.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/data/example.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/distributed_weighted_sampler.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;
using Group = std::shared_ptr<ProcessGroup>;

const auto loss_of = [](auto& model, auto& batch) {
  return at::mse_loss(model(batch.data), batch.target);
};

const std::vector<torch::data::Example<>>& three_batches() {
  static const std::vector<torch::data::Example<>> made(
      3, {testing::values({4, 6}, 1), testing::values({4, 3}, 2)});
  return made;
}

// The last rank trains with `other`, the rest with `usual`: what every rank is told.
template <class Optimizer = optim::Adam>
std::vector<std::string> messages(int ranks, const TrainerOptions& usual,
                                  const TrainerOptions& other, double usual_rate = 1e-3,
                                  double other_rate = 1e-3) {
  std::vector<std::string> told(static_cast<std::size_t>(ranks));
  run_rank_threads(ranks, [&](const Group& group) {
    const bool last = group->rank() == ranks - 1;
    Mlp net;
    Trainer trainer(net, group, last ? other : usual);
    trainer.template optimize_with<Optimizer>(
        torch::optim::AdamOptions(last ? other_rate : usual_rate));
    told[static_cast<std::size_t>(group->rank())] =
        message_of<UsageError>([&] { trainer.fit(three_batches(), loss_of); });
  });
  return told;
}

void expect_each(const std::vector<std::string>& messages, const std::string& usual,
                 const std::string& other) {
  const std::string of_other = "rank " + std::to_string(messages.size() - 1) + " has " + other;
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0 has " + usual), HasSubstr(of_other)));
  }
}

TEST(TrainingAgreement, NamesTheOptionBothValuesAndTheRanks) {
  for (const int ranks : {2, 3}) {
    for (const bool sharded : {false, true}) {
      const TrainerOptions plain{.shard_optimizer = sharded};
      const auto with = [&](auto change) {
        TrainerOptions changed = plain;
        change(changed);
        return messages(ranks, plain, changed);
      };
      expect_each(with([](auto& options) { options.max_grad_norm = 0.1; }), "max_grad_norm none",
                  "max_grad_norm 0.1");
      expect_each(with([](auto& options) { options.lr_schedule = optim::StepLR{.step_size = 60}; }),
                  "lr_schedule none", "lr_schedule yes");
      expect_each(with([](auto& options) { options.lr_scale = 2; }), "lr_scale 1", "lr_scale 2");
      expect_each(with([](auto& options) { options.accumulation_steps = 2; }),
                  "accumulation_steps 1", "accumulation_steps 2");
      expect_each(with([](auto& options) { options.epochs = 4; }), "epochs 1", "epochs 4");
      expect_each(with([](auto& options) { options.evaluation_buffers = EvaluationBuffers::mean; }),
                  "evaluation_buffers of_rank_0", "evaluation_buffers mean");
    }
    for (const std::string& message : messages<torch::optim::Adam>(ranks, {}, {}, 1e-3, 2e-3)) {
      EXPECT_THAT(message,
                  AllOf(HasSubstr("rank 0 has lr 0.001 in the optimizer's parameter group"),
                        HasSubstr(" has lr 0.002")));
    }
    for (const std::string& message : messages<optim::Adam>(ranks, {}, {})) EXPECT_EQ(message, "");
  }
}

std::string fit_message(const Group& group, const FitOptions& fit, const TrainerOptions& options) {
  Mlp net;
  Trainer trainer(net, group, options);
  trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(0.1));
  FitOptions all = fit;
  const auto end_epoch = all.end_epoch;
  all.end_epoch = [&, end_epoch](const EpochSummary& summary) {
    if (end_epoch) end_epoch(summary);
    if (summary.epoch == 0 && group->rank() == 1 && options.epochs == 3) {
      trainer.optimizer().param_groups()[0].options().set_lr(0.05);
    }
  };
  return message_of<UsageError>([&] { trainer.fit(three_batches(), loss_of, all); });
}

TEST(TrainingAgreement, ComparesSamplersScoresAndRatesThatChange) {
  run_rank_threads(2, [](const Group& group) {
    const int rank = group->rank();
    DistributedSampler seeded(24, group, {.seed = rank});
    EXPECT_THAT(fit_message(group, {.sampler = &seeded}, {}),
                AllOf(HasSubstr("24 samples over 2 ranks, seed 0"), HasSubstr("seed 1")));
    DistributedSampler sized(24 + rank, group);
    EXPECT_THAT(fit_message(group, {.sampler = &sized}, {}),
                AllOf(HasSubstr("24 samples"), HasSubstr("25 samples")));
    DistributedWeightedSampler weighted(torch::ones({24}) + rank * torch::eye(24)[3], 24, group);
    EXPECT_THAT(fit_message(group, {.sampler = &weighted}, {}), HasSubstr("24 weights"));
    EXPECT_THAT(fit_message(group, {.evaluate = [&] { return 0.5 + rank; }}, {.patience = 2}),
                HasSubstr("evaluate() returned is 0.5 on rank 0 and 1.5 on rank 1"));
    EXPECT_EQ(fit_message(group, {.evaluate = [&] { return 0.5 + rank; }}, {}), "")
        << "it decides nothing";
    EXPECT_THAT(
        fit_message(group, {}, {.epochs = 3}),
        HasSubstr("epoch 2/3 ends with the learning rate 0.1 on rank 0 and 0.05 on rank 1"));
  });
}

TEST(TrainingAgreement, AClippingLimitTravelsWithTheNorm) {
  for (const int ranks : {2, 3}) {
    run_rank_threads(ranks, [&](const Group& group) {
      Mlp net;
      DistributedDataParallel model(net, group);
      model(testing::values({4, 6}, 1)).sum().backward();
      const at::Tensor before = net->parameters()[0].grad().clone();
      const double own = group->rank() == ranks - 1 ? 0.25 : 1;
      EXPECT_THAT(message_of<UsageError>([&] { clip_grad_norm_(*model, own); }),
                  AllOf(HasSubstr("max_norm is " + std::string(own == 1 ? "1" : "0.25")),
                        HasSubstr(own == 1 ? "but 0.25 and 2" : "but 1 and 2 on rank 0")));
      EXPECT_TRUE(net->parameters()[0].grad().equal(before));
      EXPECT_GT(clip_grad_norm_(*model, 1), 0) << "the group is usable";
    });
  }
}

}  // namespace
}  // namespace lockstep
