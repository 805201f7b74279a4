// SPDX-License-Identifier: BSD-3-Clause
// The trainer beside the loops that it stands for, in each mode.
#include "lockstep/train/trainer.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include "tests/train/mlp_training.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

using testing::Batch;
using testing::batches;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::mse;
using testing::new_net;
using ::testing::Not;
using testing::run_rank_threads;
using torch::optim::SGDOptions;

// What a user would write for one process.
Mlp trained_by_hand(std::int64_t epochs, double rate, double max_norm = 1e9) {
  Mlp net = new_net();
  torch::optim::SGD optimizer(net->parameters(), SGDOptions(rate).momentum(0.9));
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (auto& batch : batches(0, 1)) {
      optimizer.zero_grad();
      mse(net, batch).backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), max_norm);
      optimizer.step();
    }
  }
  return net;
}

Mlp trained(const std::shared_ptr<ProcessGroup>& group, const TrainerOptions& options,
            double rate = 0.1) {
  Mlp net = new_net();
  Trainer trainer(net, group, options);
  trainer.optimize_with<optim::SGD>(SGDOptions(rate).momentum(0.9));
  trainer.fit(batches(group->rank(), group->size()), mse);
  return net;
}

TEST(Trainer, TakesTheStepsOfAHandWrittenLoopInEachMode) {
  const Mlp expected = trained_by_hand(2, 0.1);
  const auto alone = make_self_group();
  expect_close(trained(alone, {.epochs = 2}), expected);
  expect_close(
      trained(alone,
              {.mode = TrainingMode::data_parallel, .epochs = 2, .data_parallel = {.replicas = 2}}),
      expected);
  run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_close(trained(group, {.epochs = 2}), expected);
    expect_close(
        trained(group,
                {.epochs = 2, .distributed = {.whole_gradients = false}, .shard_optimizer = true}),
        expected);
  });
}

torch::nn::Sequential net_with_norm() {
  torch::nn::Sequential net{torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4),
                            torch::nn::Linear(4, 3)};
  testing::set_weights(*net, 3);
  return net;
}

TEST(Trainer, NormalizesBatchesOverAllRanksInAGroupOfTheirOwn) {
  const auto train = [](const std::shared_ptr<ProcessGroup>& group, bool synchronize) {
    torch::nn::Sequential net = net_with_norm();
    Trainer trainer(net, group, {.sync_batchnorm = synchronize});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    trainer.fit(batches(group->rank(), group->size()), mse);
    return net;
  };
  const torch::nn::Sequential expected = train(make_self_group(), true);
  EXPECT_TRUE(expected->ptr(1)->as<torch::nn::BatchNorm1d>());
  const auto close = [&](const torch::nn::Sequential& net) {
    const at::Tensor weight = net->named_parameters()["0.weight"];
    const at::Tensor mean = net->named_buffers()["1.running_mean"];
    return at::allclose(mean, expected->named_buffers()["1.running_mean"], 1e-4, 1e-6) &&
           at::allclose(weight, expected->named_parameters()["0.weight"], 1e-4, 1e-6);
  };
  for (const int ranks : {2, 3}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const torch::nn::Sequential net = train(group, true);
      EXPECT_TRUE(close(net));
      const auto* norm = net->ptr(1)->as<SyncBatchNorm>();
      ASSERT_TRUE(norm);
      EXPECT_NE(norm->group(), group);
      EXPECT_EQ(norm->group()->size(), group->size());
      EXPECT_FALSE(close(train(group, false)));
    });
  }
}

TEST(Trainer, ClipsTheNormOfAllGradients) {
  const Mlp expected = trained_by_hand(1, 0.1, 0.05);
  expect_close(trained(make_self_group(), {.max_grad_norm = 0.05}), expected);
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    expect_close(trained(group, {.max_grad_norm = 0.05}), expected);
  });
}

// In one process and on ranks, of both kinds and however it is made.
TEST(Trainer, ClipsAndStepsTiedWeightsOnce) {
  const auto new_tied = [] {
    testing::Tied net;
    testing::set_weights(*net, 2);
    return net;
  };
  const auto loss = [](auto& model, auto& x) { return model(x).square().sum(); };
  const std::vector<at::Tensor> data{testing::values({4, 6})};
  testing::Tied expected = new_tied();
  loss(expected, data.front()).backward();
  const std::vector<at::Tensor> parameters = distinct_parameters(*expected);
  ASSERT_GT(torch::nn::utils::clip_grad_norm_(parameters, 0.5), 0.5);
  torch::optim::SGD(parameters, 1.0).step();
  const auto expect_trained = [&](const std::shared_ptr<ProcessGroup>& group,
                                  const auto& optimize) {
    testing::Tied net = new_tied();
    Trainer trainer(net, group, {.max_grad_norm = 0.5});
    optimize(trainer, *net);
    trainer.fit(data, loss);
    testing::expect_close(net->weight, expected->weight, "the tied weight");
  };
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      expect_trained(group, [](auto& trainer, auto&) {
        trainer.template optimize_with<torch::optim::SGD>(SGDOptions(1));
      });
      expect_trained(group, [](auto& trainer, auto&) {
        trainer.template optimize_with<optim::SGD>(SGDOptions(1));
      });
      expect_trained(group, [](auto& trainer, auto& net) {
        trainer.optimize_with(std::make_unique<torch::optim::SGD>(net.parameters(), 1.0));
      });
    });
  }
}

TEST(Trainer, RefusesAParameterOfTwoGroups) {
  testing::Tied net;
  Trainer trainer(net, make_self_group());
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->in->parameters());
  groups.emplace_back(std::vector{net->bias, net->weight});
  auto optimizer = std::make_unique<torch::optim::SGD>(groups, SGDOptions(1));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.optimize_with(std::move(optimizer)); }),
              HasSubstr("[Trainer] parameter 1 of group 1, of shape [6, 6] is in group 0 too; "
                        "list it in one of them"));
}

TEST(Trainer, AccumulatesBatches) {
  // Two batches of twelve samples make a step of 24; the fifth and last is a step of half a weight.
  Mlp expected = new_net();
  torch::optim::SGD optimizer(expected->parameters(), 0.1);
  const auto parts = batches(0, 1);
  for (const int i : {0, 2, 4}) {
    optimizer.zero_grad();
    mse(expected, parts[i]).div(2).backward();
    if (i < 4) mse(expected, parts[i + 1]).div(2).backward();
    optimizer.step();
  }
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    auto own = batches(group->rank(), 2);
    own.pop_back();
    Mlp net = new_net();
    Trainer trainer(net, group, {.accumulation_steps = 2});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    EXPECT_EQ(trainer.fit(own, mse).front().steps, 3);
    expect_close(net, expected);
  });
}

TEST(Trainer, TrainsInBfloat16) {
  const Mlp expected = trained_by_hand(1, 0.1);
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net = new_net();
    Trainer trainer(net, group, {.amp = at::kBFloat16});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1).momentum(0.9));
    trainer.fit(batches(group->rank(), 2), [](auto& model, auto& batch) {
      const at::Tensor output = model(batch.data);
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      return at::mse_loss(output.to(at::kFloat), batch.target);
    });
    EXPECT_TRUE(at::allclose(net->hidden->weight, expected->hidden->weight, 0.1, 0.01));
  });
}

TEST(Trainer, SkipsStepsThatOverflowInFloat16) {
  if (!libtorch::kHasHalfOnCpu) GTEST_SKIP() << "this libtorch has no float16 on CPUs";
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net = new_net();
    Trainer trainer(net, group, {.max_grad_norm = 1, .amp = at::kHalf});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    int calls = 0;
    const auto overflows_once = [&](auto& model, auto& batch) {
      const at::Tensor output = model(batch.data);
      EXPECT_EQ(output.scalar_type(), at::kHalf);
      const at::Tensor loss = at::mse_loss(output.to(at::kFloat), batch.target);
      return ++calls == 2 && group->rank() == 1 ? loss * 1e30 : loss;
    };
    const auto summary = trainer.fit(batches(group->rank(), 2), overflows_once).front();
    EXPECT_EQ(summary.steps, 6);
    EXPECT_EQ(summary.skipped, 1);
    EXPECT_EQ(trainer.scaler().get_scale(), 32768);
  });
}

TEST(Trainer, TrainsInTrainingModeAndLeavesTheLossAlone) {
  Mlp net = new_net();
  net->eval();
  Trainer trainer(*net, make_self_group());
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  std::vector<at::Tensor> losses;
  std::vector<double> values;
  trainer.fit(batches(0, 1), [&](auto& model, auto& batch) {
    EXPECT_TRUE(net->is_training());
    losses.push_back(mse(model, batch).to(at::kDouble).view({1}));
    values.push_back(losses.back().template item<double>());
    return losses.back();
  });
  for (std::size_t i = 0; i < losses.size(); ++i) EXPECT_EQ(losses[i].item<double>(), values[i]);
}

TEST(Trainer, NamesTheRankOfWhatItsPartsRefuse) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto message = [&](const TrainerOptions& options) {
      return message_of<UsageError>([&] {
        Trainer trainer(new_net(), group, options);
        trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
        trainer.fit(batches(group->rank(), 2), mse);
      });
    };
    const std::string rank = std::to_string(group->rank());
    EXPECT_EQ(message({.lr_schedule = optim::StepLR{}}),
              "[Trainer] ([StepLR]), rank " + rank + " of 2: step_size is 0; it must be positive");
    const auto nan = [](std::int64_t step) { return step < 2 ? 1 : std::nan(""); };
    EXPECT_EQ(message({.lr_schedule = optim::LambdaLR{.lr_lambda = {nan}}}),
              "[Trainer] ([LambdaLR]), rank " + rank +
                  " of 2: lr_lambda returned nan for step 2; return a finite factor");
    EXPECT_EQ(message({.reduce_lr_on_plateau = optim::ReduceLROnPlateauOptions{.factor = 2}}),
              "[Trainer] ([ReduceLROnPlateau]), rank " + rank +
                  " of 2: factor is 2; it must be from 0 to below 1");
    EXPECT_EQ(message({.amp = at::kDouble}),
              "[Trainer] ([Autocast]), rank " + rank +
                  " of 2: converts to float16 (at::kHalf) or bfloat16 (at::kBFloat16), not to "
                  "Double; choose one of the two");
  });
}

struct PartlyUsedImpl : torch::nn::Cloneable<PartlyUsedImpl> {
  PartlyUsedImpl() { reset(); }
  void reset() override {
    used = register_module("used", torch::nn::Linear(6, 3));
    spare = register_module("spare", torch::nn::Linear(6, 3));
    frozen = register_module("frozen", torch::nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& x) { return used(x); }
  torch::nn::Linear used{nullptr}, spare{nullptr}, frozen{nullptr};
};

TORCH_MODULE(PartlyUsed);

TEST(Trainer, NamesParametersThatNeverGetAGradient) {
  for (const int ranks : {1, 2}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      std::vector<std::string> lines;
      const auto train = [&](auto net) {
        lines.clear();
        const auto log = [&](const std::string& line) { lines.push_back(line); };
        Trainer trainer(net, group, {.epochs = 2, .log = log});
        trainer.template optimize_with<optim::SGD>(SGDOptions(0.1));
        trainer.fit(batches(group->rank(), ranks), mse);
      };
      train(new_net());
      EXPECT_THAT(lines, Not(Contains(HasSubstr("never got a gradient"))));
      PartlyUsed net;
      for (at::Tensor& parameter : net->frozen->parameters()) parameter.set_requires_grad(false);
      train(net);
      if (group->rank() != 0) return;
      EXPECT_THAT(lines, Contains("2 parameters never got a gradient in the first epoch: "
                                  "spare.weight, spare.bias; use them in the loss, or freeze them "
                                  "with requires_grad_(false)")
                             .Times(1));
    });
  }
}

TEST(Trainer, GoesOnAfterAnErrorOfTheUsersFunction) {
  Mlp net = new_net();
  Trainer trainer(net, make_self_group());
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  int calls = 0;
  const auto fails_once = [&](auto& model, auto& batch) {
    if (++calls == 3) throw std::runtime_error("the user's own mistake");
    return mse(model, batch);
  };
  EXPECT_THROW(trainer.fit(batches(0, 1), fails_once), std::runtime_error);
  EXPECT_EQ(trainer.fit(batches(0, 1), fails_once).front().steps, 6);
}

TEST(Trainer, RefusesWhatCannotBe) {
  const auto alone = make_self_group();
  const auto message = [&](const TrainerOptions& options) {
    return message_of<UsageError>([&] { Trainer trainer(new_net(), alone, options); });
  };
  EXPECT_THAT(message({.epochs = 0}), HasSubstr("rank 0 of 1: 0 epochs; train for at least 1"));
  EXPECT_THAT(message({.accumulation_steps = 0}), HasSubstr("accumulation_steps is 0"));
  EXPECT_THAT(message({.max_grad_norm = -1}), HasSubstr("max_grad_norm is -1"));
  EXPECT_THAT(message({.patience = -1}), HasSubstr("patience is -1"));
  EXPECT_THAT(message({.restore_best = true,
                       .checkpoints = TrainerCheckpointOptions{.folder = "x", .keep_best = 0}}),
              HasSubstr("set keep_best to at least 1"));
  EXPECT_THAT(message({.ema_decay = 1}), HasSubstr("ema_decay is 1; it must be from 0 to below 1"));
  EXPECT_THAT(message({.lr_scale = 0}), HasSubstr("lr_scale is 0; it must be positive"));
  EXPECT_THAT(message({.data_parallel = {.replicas = 2}}),
              HasSubstr("2 replicas need TrainingMode::data_parallel"));
  EXPECT_THAT(message({.distributed = {.whole_gradients = false}}),
              HasSubstr("divided gradients need .shard_optimizer"));
  EXPECT_THAT(message({.distributed = {.one_copy_per_host = true}}),
              HasSubstr("one_copy_per_host needs .shard_optimizer = true"));
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT(message_of<UsageError>(
                    [&] { Trainer trainer(new_net(), group, {.mode = TrainingMode::single}); }),
                HasSubstr("single and data_parallel train in one process"));
  });
  EXPECT_THAT(message_of<UsageError>([&] { Trainer trainer(Mlp(nullptr), alone); }),
              HasSubstr("rank 0 of 1: the module is empty; make it first"));
  Trainer trainer(new_net(), alone, {.shard_optimizer = true});
  EXPECT_THAT(message_of<UsageError>([&] { trainer.fit(batches(0, 1), mse); }),
              HasSubstr("call optimize_with() first"));
  EXPECT_THAT(
      message_of<UsageError>([&] { trainer.optimize_with<torch::optim::SGD>(SGDOptions(0.1)); }),
      HasSubstr("needs an optimizer of lockstep::optim"));
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.optimize_with<optim::SGD>(SGDOptions(0.1)); }),
              HasSubstr("was called before"));
  EXPECT_THAT(message_of<UsageError>([&] { trainer.fit(std::vector<Batch>(), mse); }),
              HasSubstr("epoch 1/1 has no batches"));
}

}  // namespace
}  // namespace lockstep
