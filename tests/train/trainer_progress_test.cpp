// SPDX-License-Identifier: BSD-3-Clause
// Trainings that stop in the middle of an epoch and resume from the checkpoints of the trainer.
#include "lockstep/train/trainer_progress.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/test_device.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/data/example.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using ::testing::Not;
using testing::run_rank_threads;
using ::testing::SizeIs;
using testing::TemporaryFolder;

constexpr std::int64_t kSamples = 48;
constexpr std::int64_t kGlobalBatch = 12;
constexpr std::int64_t kStepsPerEpoch = 4;

struct Stopped : std::runtime_error {
  Stopped() : std::runtime_error("stopped") {}
};

using Weights = std::vector<at::Tensor>;

bool are_equal(const Weights& left, const Weights& right) {
  return std::ranges::equal(left, right, [](const auto& a, const auto& b) { return a.equal(b); });
}

struct Case {
  TrainerOptions options;
  bool with_sampler = true;
  double rate = 1e-2;
  std::int64_t global_batch = kGlobalBatch;
  // Throws Stopped after this step.
  std::int64_t stops_after = -1;
  // Gets the rate of each step of rank 0; may be null.
  std::vector<double>* rates = nullptr;
};

// The weights of rank 0 afterwards, and their averages.
Weights train(std::shared_ptr<ProcessGroup> group, const Case& with) {
  const int ranks = group->size();
  Mlp net;
  testing::set_weights(*net, 3);
  Trainer trainer(net, group, with.options);
  trainer.optimize_with<optim::Adam>(torch::optim::AdamOptions(with.rate));
  DistributedSampler sampler(kSamples, *group, {.shuffle = with.with_sampler, .seed = 5});
  MemoryLoader loader(testing::values({kSamples, 6}, 1), testing::values({kSamples, 3}, 2), sampler,
                      {.batch_size = static_cast<std::size_t>(with.global_batch / ranks)});
  trainer.fit(
      loader,
      [](auto& model, auto& batch) { return at::mse_loss(model(batch.data), batch.target); },
      {.sampler = with.with_sampler ? &sampler : nullptr,
       .after_step = [&](const StepSummary& step) {
         if (with.rates != nullptr && group->rank() == 0) with.rates->push_back(step.learning_rate);
         if (step.step == with.stops_after) throw Stopped();
       }});
  Weights weights;
  for (const auto& [name, tensor] : state_dict(*net)) weights.push_back(tensor.clone());
  if (trainer.ema() == nullptr) return weights;
  for (const auto& [name, tensor] : trainer.ema()->state_dict()) weights.push_back(tensor.clone());
  return weights;
}

Weights train_ranks_of(int ranks, const Case& what) {
  Weights weights;
  run_rank_threads(ranks, [&](std::shared_ptr<ProcessGroup> group) {
    const bool is_first = group->rank() == 0;
    const Weights own = train(std::move(group), what);
    if (is_first) weights = own;
  });
  return weights;
}

// Stops once, in the second of three epochs, two steps after a checkpoint.
Weights resumed(int before, int after, Case what) {
  const TemporaryFolder folder;
  what.options.epochs = 3;
  what.options.checkpoints = {.folder = folder.path() / "run", .every_steps = 5};
  what.stops_after = 7;
  EXPECT_THROW(train_ranks_of(before, what), Stopped);
  what.stops_after = -1;
  what.options.checkpoints->resume = true;
  return train_ranks_of(after, what);
}

TEST(TrainerSaves, AResumedRunEqualsAnUninterruptedOneInEveryMode) {
  for (const bool with_sampler : {true, false}) {
    for (const Case& what :
         {Case{.options = {.epochs = 3}}, Case{.options = {.epochs = 3, .ema_decay = 0.9}},
          Case{.options = {.mode = TrainingMode::data_parallel,
                          .epochs = 3,
                          .data_parallel = {.replicas = 2}}},
          Case{.options = {.epochs = 3, .lr_schedule = optim::CosineAnnealingLR{.T_max = 12}}}}) {
      Case with = what;
      with.with_sampler = with_sampler;
      EXPECT_TRUE(are_equal(resumed(1, 1, with), train_ranks_of(1, with)));
    }
  }
  const Case sharded{.options = {.epochs = 3, .shard_optimizer = true}};
  EXPECT_TRUE(are_equal(resumed(2, 2, sharded), train_ranks_of(2, sharded)));
  const Case averaged{.options = {.epochs = 3, .ema_decay = 0.9, .shard_optimizer = true}};
  EXPECT_TRUE(are_equal(resumed(2, 2, averaged), train_ranks_of(2, averaged)));
  const Weights whole = train_ranks_of(1, {.options = {.epochs = 3}});
  const Weights from_one = resumed(1, 3, {.options = {.epochs = 3}});
  for (std::size_t i = 0; i < whole.size(); ++i) {
    EXPECT_TRUE(at::allclose(from_one[i], whole[i], 1e-4, 1e-5));
  }
  EXPECT_FALSE(are_equal(train_ranks_of(1, {.options = {.epochs = 2}}), whole));
}

// The rate is doubled, with a warm-up of one step, and falls until the end of the training.
TrainerOptions with_cosine() {
  return {.epochs = 3, .lr_scale = 2, .lr_schedule = [](std::int64_t steps) {
            return optim::SequentialLR{
                .schedulers = {optim::LinearLR{.start_factor = 0.5, .total_iters = 1},
                               optim::CosineAnnealingLR{.T_max = steps - 1}},
                .milestones = {1}};
          }};
}

// Trains as `what`, stops, and goes on as `as`. `lines` gets rank 0's.
Weights resumed_as(int ranks, Case what, const Case& as, std::vector<std::string>& lines) {
  const TemporaryFolder folder;
  what.options.checkpoints = {.folder = folder.path(), .every_steps = 5};
  what.stops_after = 7;
  EXPECT_THROW(train_ranks_of(ranks, what), Stopped);
  Case next = as;
  next.options.checkpoints = what.options.checkpoints;
  next.options.checkpoints->resume = true;
  next.options.log = [&](const std::string& line) { lines.push_back(line); };
  return train_ranks_of(ranks, next);
}

TEST(TrainerSaves, TheCheckpointsInitialRatesAreUsedAndALineSaysSo) {
  for (const TrainerOptions& options : {TrainerOptions{.epochs = 3}, with_cosine()}) {
    for (const int ranks : {1, 2}) {
      const Case first{.options = options};
      const Case other_rate{.options = options, .rate = 0.5};
      std::vector<std::string> lines;
      EXPECT_TRUE(
          are_equal(resumed_as(ranks, first, other_rate, lines), train_ranks_of(ranks, first)));
      EXPECT_THAT(lines, Contains("the optimizer's learning rates differ from the checkpoint's: "
                                  "initial_lr.0 0.5 (checkpoint: 0.01); the checkpoint's are used")
                             .Times(1));
      EXPECT_THAT(lines, Not(Contains(HasSubstr("schedule"))));
      EXPECT_FALSE(are_equal(train_ranks_of(ranks, other_rate), train_ranks_of(ranks, first)));
      lines.clear();
      resumed_as(ranks, first, first, lines);
      EXPECT_THAT(lines, Not(Contains(HasSubstr("differ"))));
    }
  }
}

TEST(TrainerSaves, TheProgramsScheduleIsUsedAndALineNamesEachDifference) {
  for (const int ranks : {1, 2}) {
    std::vector<std::string> lines;
    TrainerOptions longer = with_cosine();
    longer.epochs = 4;
    const Weights changed =
        resumed_as(ranks, {.options = with_cosine()}, {.options = longer}, lines);
    EXPECT_THAT(lines, Contains("the learning-rate schedule differs from the checkpoint's: "
                                "SequentialLR.1.CosineAnnealingLR.T_max is 15 (saved: 11); this "
                                "program's is used")
                           .Times(1));
    EXPECT_THAT(lines, Not(Contains(HasSubstr("learning rates"))));
    EXPECT_FALSE(are_equal(changed, train_ranks_of(ranks, {.options = with_cosine()})));
  }
}

TEST(TrainerSaves, AFlatScheduleReturnsToTheInitialRates) {
  std::vector<double> rates;
  std::vector<std::string> lines;
  resumed_as(1, {.options = with_cosine()}, {.options = {.epochs = 3}, .rates = &rates}, lines);
  EXPECT_THAT(rates, SizeIs(3 * kStepsPerEpoch - 5));
  EXPECT_THAT(rates, Each(0.01));
}

// Four steps an epoch before the second stop, eight after it: 5 of the 12 steps are done, and 14 of
// 24 half steps are left.
TEST(TrainerSaves, WithSmallerBatchesTheScheduleReachesTheEndOfTheRun) {
  std::vector<std::int64_t> told;
  Case what{.options = {.epochs = 3, .lr_schedule = [&](std::int64_t steps) {
                          told.push_back(steps);
                          return optim::CosineAnnealingLR{.T_max = steps};
                        }}};
  const TemporaryFolder folder;
  what.options.checkpoints = {.folder = folder.path(), .every_steps = 5};
  what.stops_after = 7;
  EXPECT_THROW(train_ranks_of(1, what), Stopped);
  EXPECT_EQ(told.back(), 12);
  what.stops_after = -1;
  what.global_batch = kGlobalBatch / 2;
  what.options.checkpoints->resume = true;
  std::vector<double> rates;
  what.rates = &rates;
  train_ranks_of(1, what);
  EXPECT_EQ(told.back(), 5 + 14);
  EXPECT_THAT(rates, SizeIs(14));
}

// After the second stop: the first resumed training saved the rates that it used.
TEST(TrainerSaves, InitialRatesOutliveTwoResumptions) {
  const TemporaryFolder folder;
  Case part{.options = with_cosine()};
  part.options.checkpoints = {.folder = folder.path(), .every_steps = 1, .resume = true};
  for (const std::int64_t stop : {3, 8}) {
    part.stops_after = stop;
    EXPECT_THROW(train_ranks_of(1, part), Stopped);
    part.rate = 0.5;
  }
  part.stops_after = -1;
  EXPECT_TRUE(are_equal(train_ranks_of(1, part), train_ranks_of(1, {.options = with_cosine()})));
}

// With random numbers of the device.
Weights train_with_dropout(const TrainerOptions& options, std::int64_t stops_after) {
  const at::TensorOptions on_device(testing::test_device());
  const auto group = make_self_group({.device = on_device.device()});
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(6, 20), torch::nn::Dropout(), torch::nn::ReLU(),
                            torch::nn::Linear(20, 3));
  net->to(on_device.device());
  Trainer trainer(net, group, options);
  trainer.optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2));
  std::vector<torch::data::Example<>> batches;
  for (int batch = 0; batch < 5; ++batch) {
    batches.push_back({testing::values({12, 6}, batch).to(on_device.device()),
                       testing::values({12, 3}, batch + 0.5).to(on_device.device())});
  }
  trainer.fit(batches,
              [](auto& model, auto& batch) {
                return at::mse_loss(model(batch.data).to(at::kFloat), batch.target);
              },
              {.after_step = [&](const StepSummary& step) {
                if (step.step == stops_after) throw Stopped();
              }});
  Weights weights;
  for (const auto& [name, tensor] : state_dict(*net)) weights.push_back(tensor.clone());
  return weights;
}

// In float16 on a GPU, with a scaler; not every CPU has kernels for it.
TEST(TrainerSaves, AResumedRunDrawsTheRandomNumbersOfItsDevice) {
  const TemporaryFolder folder;
  const at::ScalarType type = testing::test_device().is_cpu() ? at::kBFloat16 : at::kHalf;
  const auto options = [&](const std::string& name) {
    return TrainerOptions{.epochs = 2,
                          .amp = type,
                          .checkpoints = {{.folder = folder.path() / name, .every_steps = 3}}};
  };
  const Weights whole = train_with_dropout(options("whole"), -1);
  EXPECT_THROW(train_with_dropout(options("stopped"), 7), Stopped);
  TrainerOptions resumed = options("stopped");
  resumed.checkpoints->resume = true;
  EXPECT_TRUE(are_equal(train_with_dropout(resumed, -1), whole));
}

// Batches with noise, each of which is drawn when the iterator moves, as libtorch's loaders do.
class NoisyBatches {
 public:
  struct End {};
  class Iterator {
   public:
    explicit Iterator(DistributedSampler& sampler) : sampler_(sampler) { ++*this; }
    torch::data::Example<>& operator*() { return *batch_; }
    Iterator& operator++() {
      const auto samples = sampler_.next(6);
      batch_.reset();
      if (samples) batch_.emplace(at::rand({6, 6}), testing::values({6, 3}, 1));
      return *this;
    }
    bool operator!=(End) const { return batch_.has_value(); }

   private:
    DistributedSampler& sampler_;
    std::optional<torch::data::Example<>> batch_;
  };

  explicit NoisyBatches(DistributedSampler& sampler) : sampler_(sampler) {}
  Iterator begin() {
    sampler_.reset();
    return Iterator(sampler_);
  }
  End end() const { return {}; }

 private:
  DistributedSampler& sampler_;
};

Weights train_with_noise(std::int64_t accumulation_steps, const TrainerCheckpointOptions& saves,
                         std::int64_t stops_after) {
  const auto group = make_self_group();
  torch::manual_seed(1);
  Mlp net;
  testing::set_weights(*net, 3);
  Trainer trainer(net, group,
                  {.epochs = 2, .accumulation_steps = accumulation_steps, .checkpoints = saves});
  trainer.optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2));
  DistributedSampler sampler(kSamples, *group, {.seed = 5});
  NoisyBatches batches(sampler);
  trainer.fit(
      batches,
      [](auto& model, auto& batch) { return at::mse_loss(model(batch.data), batch.target); },
      {.sampler = &sampler, .after_step = [&](const StepSummary& step) {
         if (step.step == stops_after) throw Stopped();
       }});
  Weights weights;
  for (const auto& [name, tensor] : state_dict(*net)) weights.push_back(tensor.clone());
  return weights;
}

// Eight batches an epoch: with three in a step, the last step has two.
TEST(TrainerSaves, AResumedRunDrawsTheRandomNumbersOfItsBatches) {
  for (const std::int64_t accumulation_steps : {1, 2, 3}) {
    const TemporaryFolder folder;
    TrainerCheckpointOptions saves{.folder = folder.path() / "whole", .every_steps = 1};
    const Weights whole = train_with_noise(accumulation_steps, saves, -1);
    const std::int64_t steps = (8 + accumulation_steps - 1) / accumulation_steps;
    saves.folder = folder.path() / "stopped";
    EXPECT_THROW(train_with_noise(accumulation_steps, saves, steps + 2), Stopped);
    saves.resume = true;
    EXPECT_TRUE(are_equal(train_with_noise(accumulation_steps, saves, -1), whole))
        << accumulation_steps;
  }
}

TEST(TrainerSaves, WithoutASamplerTheNumberOfRanksMustStay) {
  EXPECT_THAT(
      message_of<CheckpointError>([] { resumed(1, 2, {.options = {}, .with_sampler = false}); }),
      HasSubstr("in the middle of an epoch by 1 rank, and there are 2 now; give fit() the "
                "sampler"));
}

class TrainerSavesAlone : public ::testing::Test {
 protected:
  std::vector<EpochSummary> fit(const std::vector<double>& evaluations,
                                TrainerOptions options = {}) {
    Mlp net;
    testing::set_weights(*net, 3);
    options.epochs = static_cast<std::int64_t>(evaluations.size());
    if (!options.checkpoints) options.checkpoints = {.folder = folder_.path(), .resume = true};
    options.log = [this](const std::string& line) { lines_.push_back(line); };
    Trainer trainer(net, make_self_group(), options);
    trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(0.01));
    const std::vector<torch::data::Example<>> batches(
        2, {testing::values({4, 6}, 1), testing::values({4, 3}, 2)});
    std::size_t epoch = 0;
    return trainer.fit(
        batches,
        [](auto& model, auto& batch) { return at::mse_loss(model(batch.data), batch.target); },
        {.begin_epoch = [&](std::int64_t number) { epoch = static_cast<std::size_t>(number); },
         .evaluate = [&] { return evaluations.at(epoch); }});
  }

  const TemporaryFolder folder_;
  std::vector<std::string> lines_;
};

TEST_F(TrainerSavesAlone, MoreEpochsGoOnFromTheEndOfAnEarlierTraining) {
  EXPECT_THAT(fit({0.5, 0.6}), SizeIs(2));
  EXPECT_THAT(fit({0.5, 0.6}), SizeIs(0));
  const auto summaries = fit({0.5, 0.6, 0.7});
  ASSERT_THAT(summaries, SizeIs(1));
  EXPECT_EQ(summaries[0].epoch, 2);
  EXPECT_THAT(lines_, Contains(HasSubstr("resuming from")));
}

TEST_F(TrainerSavesAlone, KeepsTheBestEvaluation) {
  fit({0.5, 0.9, 0.6, 0.1, 0.2});
  EXPECT_THAT(checkpoint_names(folder_.path()),
              ElementsAre("step-000000000010", "step-000000000008", "step-000000000004"));
}

// The first of equal evaluations is the best: in the log, in the folder, and for the patience.
TEST_F(TrainerSavesAlone, AnEqualEvaluationIsNotBetter) {
  fit({0.5, 0.9, 0.9, 0.9, 0.9}, {.patience = 2});
  EXPECT_EQ(lines_.back(), "early stop after epoch 4: best 0.9000 in epoch 2 (" +
                               (folder_.path() / "step-000000000004").string() + ")");
  EXPECT_EQ(fs::read_symlink(folder_.path() / "best"), "step-000000000004");
}

TEST_F(TrainerSavesAlone, RemembersItsPatience) {
  EXPECT_THAT(fit({0.9, 0.5}, {.patience = 2}), SizeIs(2));
  EXPECT_THAT(fit({0.9, 0.5, 0.4, 0.3, 0.2}, {.patience = 2}), SizeIs(1));
  EXPECT_THAT(fit({0.9, 0.5, 0.4, 0.3, 0.2}, {.patience = 2}), SizeIs(0));
}

TEST_F(TrainerSavesAlone, SaysWhyItStopsEarlyAndThatNothingIsLeft) {
  const std::vector<double> evaluations{0.1, 0.9, 0.3, 0.5, 0.7};
  fit(evaluations, {.patience = 2});
  const std::string stop = "early stop after epoch 4: best 0.9000 in epoch 2 (" +
                           (folder_.path() / "step-000000000004").string() + ")";
  EXPECT_EQ(lines_.back(), stop);
  EXPECT_THAT(fit(evaluations, {.patience = 2}), SizeIs(0));
  EXPECT_EQ(lines_.back(), "nothing is left to train: " + stop);
}

// In the trainer and in the folder; also after a second resumption, which reads the scores again.
TEST_F(TrainerSavesAlone, ForgetsTheBestOfAnotherMetric) {
  const auto best = [&] { return fs::read_symlink(folder_.path() / "best").string(); };
  const TrainerOptions lowest{.watch = {.lower_is_better = true}, .patience = 2};
  fit({0.9, 0.5}, {.patience = 2});
  EXPECT_EQ(best(), "step-000000000002");
  EXPECT_THAT(fit({0.9, 0.5, 0.4}, lowest), SizeIs(1));
  EXPECT_THAT(lines_, Contains("the best evaluation so far is forgotten: it was of the highest "
                               "evaluation, and now the lowest evaluation decides"));
  EXPECT_EQ(best(), "step-000000000006");
  EXPECT_THAT(fit({0.9, 0.5, 0.4, 0.6, 0.5, 0.3}, lowest), SizeIs(2));
  EXPECT_EQ(best(), "step-000000000006");
  EXPECT_THAT(checkpoint_names(folder_.path()),
              ElementsAre("step-000000000010", "step-000000000008", "step-000000000006"));
}

TEST_F(TrainerSavesAlone, SaysThatAllEpochsAreDone) {
  fit({0.1, 0.2});
  EXPECT_THAT(lines_.back(), HasSubstr("epoch 2/2: mean loss"));
  fit({0.1, 0.2});
  EXPECT_EQ(lines_.back(), "nothing is left to train: the checkpoint includes epoch 2/2");
}

// From the folder, also after a resumption, and from memory; with averages, the averaged one.
TEST(TrainerSaves, ABestModelIsRestored) {
  for (const auto& [ranks, ema_decay] :
       std::vector<std::pair<int, std::optional<double>>>{{1, {}}, {2, {}}, {1, 0.5}, {2, 0.5}}) {
    const TemporaryFolder folder;
    run_rank_threads(ranks, [&, ema_decay = ema_decay](const std::shared_ptr<ProcessGroup>& group) {
      const std::vector<double> evaluations{0.1, 0.8, 0.3, 0.2, 0.1};
      std::vector<Weights> after_epochs;
      const auto train = [&](std::int64_t epochs,
                             const std::optional<TrainerCheckpointOptions>& checkpoints) {
        Mlp net;
        testing::set_weights(*net, 3);
        Trainer trainer(net, group,
                        {.epochs = epochs,
                         .ema_decay = ema_decay,
                         .patience = 3,
                         .restore_best = true,
                         .checkpoints = checkpoints});
        trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(0.1));
        std::size_t epoch = 0;
        const auto weights = [&] {
          Weights found;
          for (const auto& [name, tensor] : state_dict(*net)) found.push_back(tensor.clone());
          return found;
        };
        trainer.fit(
            std::vector<torch::data::Example<>>(
                2, {testing::values({4, 6}, 1), testing::values({4, 3}, 2)}),
            [](auto& model, auto& batch) { return at::mse_loss(model(batch.data), batch.target); },
            {.begin_epoch = [&](std::int64_t number) { epoch = static_cast<std::size_t>(number); },
             .evaluate =
                 [&] {
                   after_epochs.resize(epoch + 1);
                   after_epochs[epoch] = weights();
                   return evaluations.at(epoch);
                 }});
        return weights();
      };
      const Weights restored = train(5, {});
      ASSERT_THAT(after_epochs, SizeIs(5));
      const Weights best = after_epochs.at(1);
      EXPECT_TRUE(are_equal(restored, best));
      const TrainerCheckpointOptions checkpoints{.folder = folder.path(), .resume = true};
      for (const std::int64_t epochs : {3, 5, 5}) {
        EXPECT_TRUE(are_equal(train(epochs, checkpoints), best)) << epochs;
      }
    });
  }
}

TEST_F(TrainerSavesAlone, ARateThatEndEpochSetsIsInTheCheckpoint) {
  const auto rates_of = [&](std::int64_t epochs) {
    Mlp net;
    testing::set_weights(*net, 3);
    Trainer trainer(
        net, make_self_group(),
        {.epochs = epochs,
         .checkpoints = TrainerCheckpointOptions{.folder = folder_.path(), .resume = true}});
    trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(0.5));
    const std::vector<torch::data::Example<>> batches(
        1, {testing::values({4, 6}, 1), testing::values({4, 3}, 2)});
    std::vector<double> rates;
    trainer.fit(
        batches,
        [](auto& model, auto& batch) { return at::mse_loss(model(batch.data), batch.target); },
        {.after_step = [&](const StepSummary& step) { rates.push_back(step.learning_rate); },
         .end_epoch =
             [&](const EpochSummary&) {
               auto& options = trainer.optimizer().param_groups()[0].options();
               options.set_lr(options.get_lr() / 2);
             }});
    return rates;
  };
  EXPECT_THAT(rates_of(2), ElementsAre(0.5, 0.25));
  EXPECT_THAT(rates_of(4), ElementsAre(0.125, 0.0625));
}

// A type that no file can keep.
struct Lion : torch::optim::Optimizer {
  explicit Lion(const std::vector<at::Tensor>& parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(parameters)},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

TEST(TrainerSaves, WhatCannotBeSavedIsRefusedBeforeTheFirstStep) {
  for (const int ranks : {1, 2, 3}) {
    const TemporaryFolder folder;
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto message = [&](auto optimize, const char* folder_name,
                               std::vector<NamedTensor> tensors = {}, bool complex = false) {
        Mlp net;
        if (complex) net->register_buffer("table", torch::zeros({2}, torch::kComplexDouble));
        Trainer trainer(
            net, group,
            {.checkpoints = TrainerCheckpointOptions{.folder = folder.path() / folder_name,
                                                     .tensors = std::move(tensors)}});
        optimize(trainer, net);
        std::int64_t steps = 0;
        const std::vector<torch::data::Example<>> batches(
            3, {testing::values({4, 6}, 1), testing::values({4, 3}, 2)});
        const std::string text = message_of<UsageError>([&] {
          trainer.fit(batches,
                      [&](auto& model, auto& batch) {
                        ++steps;
                        return at::mse_loss(model(batch.data), batch.target);
                      },
                      {});
        });
        EXPECT_EQ(steps, 0);
        return text;
      };
      const auto sgd = [](auto& trainer, auto&) {
        trainer.template optimize_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
      };
      const auto lion = [](auto& trainer, auto& net) {
        trainer.optimize_with(std::make_unique<Lion>(net->parameters()));
      };
      const auto lbfgs = [](auto& trainer, auto&) {
        trainer.template optimize_with<torch::optim::LBFGS>(torch::optim::LBFGSOptions());
      };
      EXPECT_THAT(message(lion, "lion"), HasSubstr("Lion"));
      EXPECT_THAT(message(lbfgs, "lbfgs"), HasSubstr("LBFGS"));
      EXPECT_THAT(message(sgd, "complex", {}, true),
                  AllOf(HasSubstr("\"table\""), HasSubstr("complex128")));
      EXPECT_THAT(message(sgd, "tensors", {{"caf\xE9", torch::ones({2})}}), HasSubstr("not UTF-8"));
    });
  }
}

TEST(TrainerSaves, AResumedRunSaysFromWhere) {
  const TemporaryFolder folder;
  std::vector<std::int64_t> resumed;
  const auto train = [&](std::int64_t stops_after, bool resume) {
    Mlp net;
    testing::set_weights(*net, 3);
    Trainer trainer(net, make_self_group(),
                    {.checkpoints = TrainerCheckpointOptions{
                         .folder = folder.path(), .every_steps = 10, .resume = resume}});
    trainer.optimize_with<optim::SGD>(torch::optim::SGDOptions(0.1));
    const std::vector<torch::data::Example<>> batches(
        25, {testing::values({4, 6}, 1), testing::values({4, 3}, 2)});
    trainer.fit(
        batches,
        [](auto& model, auto& batch) { return at::mse_loss(model(batch.data), batch.target); },
        {.resumed = [&](std::int64_t steps) { resumed.push_back(steps); },
         .after_step =
             [&](const StepSummary& step) {
               if (step.step == stops_after) throw Stopped();
             }});
  };
  EXPECT_THROW(train(7, true), Stopped);
  EXPECT_THROW(train(17, true), Stopped);
  train(-1, true);
  EXPECT_THAT(resumed, ElementsAre(0, 0, 10));
}

TEST_F(TrainerSavesAlone, AFolderOfAnEarlierTrainingNeedsResume) {
  fit({0.5});
  EXPECT_THAT(message_of<UsageError>([&] {
                fit({0.5}, {.checkpoints = TrainerCheckpointOptions{.folder = folder_.path()}});
              }),
              HasSubstr("the folder " + folder_.path().string() +
                        " of rank 0 has checkpoints of an earlier run; resume that run, or"));
}

}  // namespace
}  // namespace lockstep
