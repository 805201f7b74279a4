// SPDX-License-Identifier: BSD-3-Clause
// Evaluations of a Trainer: the metric that decides, early stops, averaged weights, the loss of a
// validation set.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_group.h"
#include "tests/train/mlp_training.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using testing::batches;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::mse;
using testing::new_net;
using testing::run_rank_threads;
using ::testing::SizeIs;
using torch::optim::SGDOptions;

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

}  // namespace
}  // namespace lockstep
