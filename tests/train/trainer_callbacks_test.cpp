// SPDX-License-Identifier: BSD-3-Clause
// Callbacks, functions, lines and events of a Trainer: when they come, and what they may change.
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/thread_group.h"
#include "tests/train/mlp_training.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Batch;
using testing::batches;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using testing::Mlp;
using testing::mse;
using testing::new_net;
using testing::run_rank_threads;
using ::testing::SizeIs;
using ::testing::StartsWith;
using torch::optim::AdamOptions;
using torch::optim::SGDOptions;

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

}  // namespace
}  // namespace lockstep
