// SPDX-License-Identifier: BSD-3-Clause
// The trainer beside the loops that it stands for, in each mode.
#include "lockstep/train/trainer.h"

#include <cmath>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::Mlp;
using ::testing::Not;
using testing::run_rank_threads;
using ::testing::SizeIs;
using ::testing::StartsWith;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

struct Batch {
  at::Tensor data;
  at::Tensor target;
};

// A rank's part of six batches of twelve samples.
std::vector<Batch> batches(int rank, int ranks) {
  std::vector<Batch> made;
  for (int i = 0; i < 6; ++i) {
    made.push_back({testing::part(testing::values({12, 6}, i), rank, ranks),
                    testing::part(testing::values({12, 3}, i + 0.5), rank, ranks)});
  }
  return made;
}

const auto mse = [](auto& model, auto& batch) {
  return at::mse_loss(model(batch.data), batch.target);
};

Mlp new_net() {
  Mlp net;
  testing::set_weights(*net, 3);
  return net;
}

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

void expect_close(const Mlp& one, const Mlp& other) {
  for (const auto& item : other->named_parameters()) {
    EXPECT_TRUE(at::allclose(one->named_parameters()[item.key()], item.value(), 1e-4, 1e-6))
        << item.key();
  }
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

TEST(Trainer, AveragesTheWeightsAndEvaluatesTheAverages) {
  Mlp by_hand = new_net();
  torch::optim::SGD optimizer(by_hand->parameters(), 0.1);
  ExponentialMovingAverage expected(by_hand, {.decay = 0.5});
  for (auto& batch : batches(0, 1)) {
    optimizer.zero_grad();
    mse(by_hand, batch).backward();
    optimizer.step();
    expected.update();
  }
  const Mlp averaged = expected.module();
  for (const int ranks : {1, 2}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      for (const bool evaluates : {true, false}) {
        for (const bool shards : {false, true}) {
          Mlp net = new_net();
          Mlp evaluated = new_net();
          Trainer trainer(net, group,
                          {.ema_decay = 0.5, .evaluate_ema = evaluates, .shard_optimizer = shards});
          trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
          trainer.fit(batches(group->rank(), ranks), mse, {.evaluate = [&] {
                        testing::copy_state(*evaluated, *net);
                        return 0.5;
                      }});
          expect_close(net, by_hand);
          expect_close(trainer.ema()->module(), averaged);
          expect_close(evaluated, evaluates ? averaged : by_hand);
        }
      }
    });
  }
}

TEST(Trainer, NamesTheMetricsAndWatchesOne) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<std::string> lines;
    Trainer trainer(new_net(), group,
                    {.epochs = 9,
                     .watch = {.name = "loss", .lower_is_better = true},
                     .patience = 2,
                     .log = [&](const std::string& line) { lines.push_back(line); }});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    const std::vector<double> losses{0.5, 0.3, 0.4, 0.6};
    std::size_t epoch = 0;
    const auto summaries = trainer.fit(batches(group->rank(), 2), mse, {.evaluate = [&] {
                                         const double loss = losses.at(epoch++);
                                         return Metrics{{"accuracy", 1 - loss}, {"loss", loss}};
                                       }});
    ASSERT_THAT(summaries, SizeIs(4));
    EXPECT_EQ(summaries[1].evaluation, 0.3);
    EXPECT_EQ(summaries[1].metrics.at("accuracy"), 0.7);
    if (group->rank() != 0) return;
    EXPECT_THAT(lines, Contains(HasSubstr(" s, accuracy 0.7000, loss 0.3000")));
    EXPECT_EQ(lines.back(), "early stop after epoch 4: best 0.3000 in epoch 2");
  });
}

TEST(Trainer, AsksWhichOfSeveralMetricsDecides) {
  const auto message = [](const WatchedMetric& watch, std::int64_t patience,
                          Metrics metrics = {{"accuracy", 1}, {"loss", 0.5}}) {
    Trainer trainer(new_net(), make_self_group(), {.watch = watch, .patience = patience});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    return message_of<UsageError>(
        [&] { trainer.fit(batches(0, 1), mse, {.evaluate = [&] { return metrics; }}); });
  };
  EXPECT_THAT(message({}, 1), HasSubstr("evaluate() returned accuracy, loss, and one metric "
                                        "decides; name the metric that decides: .watch = "
                                        "{.name = \"accuracy\"}"));
  EXPECT_THAT(message({}, 1, {{"a loss", 1}, {"b", 0.5}}), EndsWith(".watch = {.name = \"b\"}"));
  EXPECT_THAT(message({}, 1, {{"a loss", 1}, {"b loss", 0.5}}),
              EndsWith(".watch = {.name = \"a loss\", .lower_is_better = true}"));
  EXPECT_THAT(message({}, 1, {}), HasSubstr("returned nothing, and one metric decides; return a"));
  EXPECT_THAT(message({.name = "top5"}, 0), HasSubstr("and no top5"));
  EXPECT_EQ(message({}, 0), "");
}

TEST(Trainer, SaysWhatDecidesAndDoesNotMaximizeALossByDefault) {
  for (const bool has_checkpoints : {false, true}) {
    const testing::TemporaryFolder folder;
    std::vector<std::string> lines;
    int made = 0;
    const auto evaluated = [&](const std::string& name, const WatchedMetric& watch) {
      lines.clear();
      TrainerOptions options{.epochs = 2, .watch = watch, .log = [&](const std::string& line) {
                               lines.push_back(line);
                             }};
      if (has_checkpoints) {
        options.checkpoints = {.folder = folder.path() / std::to_string(++made)};
      } else {
        options.patience = 2;
      }
      Trainer trainer(new_net(), make_self_group(), options);
      trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
      return message_of<UsageError>([&] {
        trainer.fit(batches(0, 1), mse, {.evaluate = [&] { return Metrics{{name, 0.5}}; }});
      });
    };
    for (const std::string name : {"val_loss", "Top-1 Error", "perplexity"}) {
      EXPECT_THAT(evaluated(name, {}),
                  HasSubstr("evaluate() returned " + name +
                            ", of which the highest would be the best; say which is better: "
                            ".watch = {.name = \"" +
                            name + "\", .lower_is_better = true}"));
      EXPECT_EQ(evaluated(name, {.lower_is_better = true}), "");
      EXPECT_THAT(lines, Contains("the lowest " + name + " decides").Times(1));
      EXPECT_EQ(evaluated(name, {.name = name}), "") << "as the program says";
    }
    EXPECT_EQ(evaluated("accuracy", {}), "");
    EXPECT_THAT(lines, Contains("the highest accuracy decides").Times(1));
  }
}

// Ranks have different numbers of samples.
TEST(Trainer, ComputesTheLossOfAValidationSet) {
  const at::Tensor data = testing::values({99, 6}, 1);
  const at::Tensor target = testing::values({99, 3}, 2);
  Mlp expected = new_net();
  const double whole = at::mse_loss(expected(data), target).item<double>();
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const DistributedSampler sampler(99, group, {.shuffle = false});
      MemoryLoader loader(data, target, sampler, {.batch_size = 20});
      Mlp net = new_net();
      Trainer trainer(net, group);
      net->train();
      const double loss = trainer.validation_loss(loader, sampler, [&](auto& model, auto& batch) {
        EXPECT_FALSE(net->is_training());
        return at::mse_loss(model(batch.data), batch.target);
      });
      EXPECT_NEAR(loss, whole, 1e-5);
      EXPECT_TRUE(net->is_training());
    });
  }
}

TEST(Trainer, GivesTheMeanLossOfAllRanksToThoseWhoAsk) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(new_net(), group);
    trainer.optimize_with<optim::SGD>(SGDOptions(1e-12));
    std::vector<double> means;
    const auto after_step = [&](const StepSummary& step) {
      if (step.step % 3 == 0) means.push_back(step.mean_loss());
    };
    trainer.fit(batches(group->rank(), 2), mse, {.after_step = after_step});
    Mlp net = new_net();
    std::vector<Batch> whole = batches(0, 1);
    ASSERT_THAT(means, SizeIs(2));
    EXPECT_NEAR(means[0], mse(net, whole[2]).item<double>(), 1e-6);
    EXPECT_NEAR(means[1], mse(net, whole[5]).item<double>(), 1e-6);
  });
}

class NotingCallback final : public TrainerCallback {
 public:
  explicit NotingCallback(std::vector<std::string>& calls) : calls_(calls) {}

  void before_epoch(std::int64_t epoch) override { note("before epoch", epoch); }
  void after_epoch(const EpochSummary& summary) override { note("after epoch", summary.epoch); }
  void before_step(std::int64_t step) override { note("before step", step); }
  void after_step(const StepSummary& summary) override { note("after step", summary.step); }
  void before_evaluation(std::int64_t epoch) override { note("before evaluation", epoch); }
  void after_evaluation(std::int64_t epoch, const Metrics& metrics) override {
    note("after evaluation", epoch);
    EXPECT_EQ(metrics, (Metrics{{"evaluation", 0.5}}));
  }
  void before_checkpoint(std::int64_t step) override { note("before checkpoint", step); }
  void after_checkpoint(std::int64_t step) override { note("after checkpoint", step); }
  void on_exception(const std::exception& error) override { calls_.emplace_back(error.what()); }

 private:
  void note(const std::string& what, std::int64_t number) {
    calls_.push_back(what + " " + std::to_string(number));
  }

  std::vector<std::string>& calls_;
};

TEST(Trainer, CallsItsCallbacksInOrder) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> calls;
  Trainer trainer(
      new_net(), make_self_group(),
      {.accumulation_steps = 3, .checkpoints = TrainerCheckpointOptions{.folder = folder.path()}});
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  const auto callback = std::make_shared<NotingCallback>(calls);
  trainer.fit(batches(0, 1), mse,
              {.after_step = [&](const StepSummary&) { calls.emplace_back("the function"); },
               .evaluate = [] { return 0.5; },
               .callbacks = {callback}});
  EXPECT_THAT(calls, ElementsAre("before epoch 0", "before step 1", "after step 1", "the function",
                                 "before step 2", "after step 2", "the function",
                                 "before evaluation 0", "after evaluation 0", "after epoch 0",
                                 "before checkpoint 2", "after checkpoint 2"));
  calls.clear();
  Trainer failing(new_net(), make_self_group());
  failing.optimize_with<optim::SGD>(SGDOptions(0.1));
  const auto fails = [](auto& model, auto& batch) {
    if (batch.data.defined()) throw std::runtime_error("no loss");
    return mse(model, batch);
  };
  EXPECT_THROW(failing.fit(batches(0, 1), fails, {.callbacks = {callback}}), std::runtime_error);
  EXPECT_THAT(calls, ElementsAre("before epoch 0", "before step 1", "no loss"));
  calls.clear();
  struct Plain {};
  const auto throws_plain = [](auto& model, auto& batch) {
    if (batch.data.defined()) throw Plain();
    return mse(model, batch);
  };
  EXPECT_THROW(failing.fit(batches(0, 1), throws_plain, {.callbacks = {callback}}), Plain);
  EXPECT_THAT(calls, ElementsAre("before epoch 0", "before step 1",
                                 "an exception that is no std::exception"));
  EXPECT_THAT(message_of<UsageError>([&] {
                failing.fit(batches(0, 1), mse, {.callbacks = {callback, nullptr}});
              }),
              HasSubstr("callback 1 of fit() is null; make an object for it, or leave it out"));
}

TEST(Trainer, WritesEventsOnRank0) {
  const testing::TemporaryFolder folder;
  const auto events = folder.path() / "runs";
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(new_net(), group, {.epochs = 2, .tensorboard = events});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    trainer.fit(batches(group->rank(), 2), mse, {.evaluate = [] {
                  return Metrics{{"accuracy", 0.5}};
                }});
  });
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(events)) {
    EXPECT_THAT(bytes, "") << "one file";
    std::ifstream in(entry.path(), std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(in), {});
  }
  for (const char* tag : {"train/loss", "train/learning_rate", "epoch/loss", "epoch/accuracy"}) {
    EXPECT_THAT(bytes, HasSubstr(tag));
  }
  folder.write("file", "");
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trainer trainer(new_net(), group, {.tensorboard = folder.path() / "file" / "runs"});
    trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
    EXPECT_THROW(trainer.fit(batches(group->rank(), 2), mse), BackendError);
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

// The layer is frozen in the first epoch, trained in the second, frozen in the third.
TEST(Trainer, FreezesAndUnfreezesBetweenEpochs) {
  const auto freeze = [](Mlp& net, std::int64_t epoch) {
    for (at::Tensor& parameter : net->middle->parameters()) {
      parameter.set_requires_grad(epoch == 1);
      if (epoch != 1) parameter.mutable_grad().reset();
    }
  };
  Mlp expected = new_net();
  torch::optim::SGD optimizer(expected->parameters(), SGDOptions(0.1).momentum(0.9));
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    freeze(expected, epoch);
    for (auto& batch : batches(0, 1)) {
      mse(expected, batch).backward();
      optimizer.step();
      for (at::Tensor& parameter : expected->parameters()) parameter.mutable_grad().reset();
    }
  }
  for (const int ranks : {1, 2}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net = new_net();
      freeze(net, 0);
      Trainer trainer(net, group, {.epochs = 3, .max_grad_norm = 1e9});
      trainer.optimize_with<optim::SGD>(SGDOptions(0.1).momentum(0.9));
      trainer.fit(batches(group->rank(), ranks), mse,
                  {.begin_epoch = [&](std::int64_t epoch) { freeze(net, epoch); }});
      expect_close(net, expected);
    });
  }
}

TEST(Trainer, RanksFreezeAlikeAndNotWithAShardedOptimizer) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto message = [&](bool shards, bool alike) {
      Mlp net = new_net();
      Trainer trainer(net, group, {.shard_optimizer = shards});
      trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
      return message_of<UsageError>([&] {
        trainer.fit(batches(group->rank(), 2), mse, {.begin_epoch = [&](std::int64_t) {
                      if (alike || group->rank() == 1) net->last->bias.set_requires_grad(false);
                    }});
      });
    };
    EXPECT_THAT(message(false, false),
                HasSubstr("parameter last.bias is trained on rank 0 and frozen on rank 1; freeze"));
    EXPECT_THAT(message(true, true), HasSubstr("leave .shard_optimizer off"));
  });
}

TEST(Trainer, ReportsEachEpoch) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<std::string> lines;
    std::vector<std::int64_t> begun;
    Mlp net = new_net();
    Trainer trainer(net, group,
                    {.epochs = 2,
                     .log = [&](const std::string& line) { lines.push_back(line); },
                     .batches_per_line = 4});
    trainer.optimize_with<optim::Adam>(AdamOptions(0.01));
    const auto summaries = trainer.fit(batches(group->rank(), 2), mse,
                                       {.begin_epoch = [&](auto epoch) { begun.push_back(epoch); },
                                        .evaluate = [] { return 0.25; }});
    EXPECT_THAT(begun, ElementsAre(0, 1));
    ASSERT_THAT(summaries, SizeIs(2));
    EXPECT_EQ(summaries[1].epoch, 1);
    EXPECT_EQ(summaries[1].steps, 6);
    EXPECT_EQ(summaries[1].skipped, 0);
    EXPECT_LT(summaries[1].loss, summaries[0].loss);
    EXPECT_GT(summaries[1].seconds, 0);
    EXPECT_EQ(summaries[1].evaluation, 0.25);
    if (group->rank() != 0) {
      EXPECT_THAT(lines, IsEmpty());
      return;
    }
    EXPECT_THAT(
        lines,
        ElementsAre(StartsWith("epoch 1/2, step 4: loss "), StartsWith("epoch 1/2: mean loss "),
                    StartsWith("epoch 2/2, step 4: loss "),
                    AllOf(StartsWith("epoch 2/2: mean loss "), EndsWith(" s, evaluation 0.2500"))));
  });
}

TEST(Trainer, StopsEarlyIfNothingGetsBetter) {
  Mlp net = new_net();
  Trainer trainer(net, make_self_group(), {.epochs = 10, .patience = 2});
  trainer.optimize_with<optim::SGD>(SGDOptions(0.1));
  const std::vector<double> values{std::nan(""), 0.3, 0.2, 0.4, std::nan(""), 0.1, 0.9};
  std::size_t next = 0;
  const auto summaries =
      trainer.fit(batches(0, 1), mse, {.evaluate = [&] { return values.at(next++); }});
  EXPECT_THAT(summaries, SizeIs(6));
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
