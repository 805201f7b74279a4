// SPDX-License-Identifier: BSD-3-Clause
// How microbatches are divided by the speeds of ranks; and trainings in which a rank is slow, which
// move microbatches to the others and end with the bits of one process.
#include "lockstep/train/load_balance.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/join.h"
#include "support/rank_processes.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/example.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/state_sha256.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/tree_sum.h"
#include "lockstep/core/error.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/dropout.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Rank;
using testing::run_ranks;

using Seconds = std::vector<double>;
using Shares = std::vector<std::int64_t>;

Shares sizes_of(const std::vector<LeafRange>& runs) {
  Shares sizes;
  for (const LeafRange& run : runs) sizes.push_back(run.size());
  return sizes;
}

Shares balanced(const Seconds& seconds, std::int64_t microbatches) {
  return sizes_of(balanced_runs(seconds, microbatches));
}

std::vector<RankLoad> computing(const Seconds& seconds) {
  std::vector<RankLoad> loads;
  for (const double number : seconds) loads.push_back({.computing = number});
  return loads;
}

// The time of the slowest rank in the best of all divisions from `rank` on.
double best_time(const Seconds& seconds, std::size_t rank, std::int64_t microbatches) {
  if (rank + 1 == seconds.size()) return static_cast<double>(microbatches) * seconds[rank];
  double best = std::numeric_limits<double>::infinity();
  const auto others = static_cast<std::int64_t>(seconds.size() - rank - 1);
  for (std::int64_t share = 1; share + others <= microbatches; ++share) {
    best = std::min(best, std::max(static_cast<double>(share) * seconds[rank],
                                   best_time(seconds, rank + 1, microbatches - share)));
  }
  return best;
}

TEST(BalancedRuns, FollowTheSpeeds) {
  EXPECT_THAT(balanced_runs(Seconds{1, 1, 2, 1}, 7),
              ElementsAre(LeafRange{0, 2}, LeafRange{2, 4}, LeafRange{4, 5}, LeafRange{5, 7}));
  EXPECT_THAT(balanced({3, 1}, 8), ElementsAre(2, 6));
  EXPECT_THAT(balanced({0.25}, 5), ElementsAre(5));
}

TEST(BalancedRuns, OfEqualRanksGiveTheLowerMore) {
  EXPECT_THAT(balanced({1, 1, 1, 1}, 8), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(balanced({1, 1, 1, 1}, 6), ElementsAre(2, 2, 1, 1));
}

TEST(BalancedRuns, GiveEachRankOneAtLeast) {
  EXPECT_THAT(balanced({1000, 1, 1000}, 5), ElementsAre(1, 3, 1));
  EXPECT_THAT(balanced({5, 1}, 2), ElementsAre(1, 1));
}

TEST(BalancedRuns, EndAsSoonAsAnyDivision) {
  std::mt19937 random(7);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same cases in each run
  std::uniform_real_distribution<double> speeds(0.5, 4);
  for (int i = 0; i < 200; ++i) {
    Seconds seconds(1 + random() % 4);
    for (double& number : seconds) number = speeds(random);
    const std::int64_t microbatches = static_cast<std::int64_t>(seconds.size() + random() % 9);
    const Shares shares = balanced(seconds, microbatches);
    double slowest = 0;
    for (std::size_t rank = 0; rank < shares.size(); ++rank) {
      slowest = std::max(slowest, static_cast<double>(shares[rank]) * seconds[rank]);
    }
    EXPECT_DOUBLE_EQ(slowest, best_time(seconds, 0, microbatches))
        << ::testing::PrintToString(seconds) << ", " << microbatches << " microbatches";
  }
}

TEST(BetterRuns, EndClearlySooner) {
  const auto even = even_runs(20, 2);
  // They end after 9.9 instead of 11.
  EXPECT_THAT(better_runs(even, computing({0.9, 1.1})),
              ::testing::Optional(ElementsAre(LeafRange{0, 11}, LeafRange{11, 20})));
  // 10.4 is not clearly sooner than 10.5.
  EXPECT_EQ(better_runs(even_runs(20, 2), computing({0.945, 1.05})), std::nullopt);
  // Others end as late.
  EXPECT_EQ(better_runs(even, computing({1, 1})), std::nullopt);
  EXPECT_EQ(better_runs(even_runs(3, 2), computing({1, 1})), std::nullopt);
}

TEST(BetterRuns, CountTheWaitForData) {
  const std::vector<RankLoad> loads{{.computing = 1, .data = 2}, {.computing = 1}};
  EXPECT_THAT(better_runs(even_runs(8, 2), loads),
              ::testing::Optional(ElementsAre(LeafRange{0, 2}, LeafRange{2, 8})));
}

TEST(BetterRuns, NeedAMeasurementOfEachRank) {
  const auto even = even_runs(8, 2);
  for (const double unknown :
       {0.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(better_runs(even, computing({1, unknown})), std::nullopt);
  }
}

TEST(LoadText, NamesTheSlowestRankAndItsTimes) {
  const auto runs = balanced_runs(Seconds{1, 1, 2, 1}, 16);
  EXPECT_EQ(
      load_text(runs,
                std::vector<RankLoad>{{.computing = 0.01, .data = 0.001, .exchange = 0.03},
                                      {.computing = 0.012, .data = 0, .exchange = 0.02},
                                      {.computing = 0.0201, .data = 0.0004, .exchange = 0.0012},
                                      {.computing = 0.009, .data = 0.002, .exchange = 0.04}}),
      "rank 2 computes for 20.1 ms per microbatch and waits 0.4 ms for its data, the others "
      "10.0 and 1.0 ms; exchanging gradients takes 1.2 ms: shares 5 5 2 4");
}

// A data set for DataLoader.
struct Samples {
  at::Tensor data;
  at::Tensor target;

  torch::data::Example<> get(std::size_t index) const {
    const auto number = static_cast<std::int64_t>(index);
    return {data[number], target[number]};
  }
  c10::optional<std::size_t> size() const { return static_cast<std::size_t>(data.size(0)); }
};

enum class Loader { memory, workers };

struct SlowTraining {
  int ranks = 2;
  Loader loader = Loader::memory;
  bool shard_optimizer = false;
};

constexpr std::int64_t kMicrobatches = 8;

// Some ten times as long as the net's microbatch takes, also beside busy cores.
constexpr std::chrono::milliseconds kDelayOfSlowRank{10};

// The last rank is slow. Five steps of an epoch are whole, so that the shares change, after the
// 16th, in the middle of one. Returns the hash of the state, and on rank 0 the lines about shares.
std::string train_with_a_slow_rank(const SlowTraining& training,
                                   const std::shared_ptr<ProcessGroup>& group) {
  constexpr std::int64_t kSamples = 130;
  torch::manual_seed(3);
  namespace nn = torch::nn;
  nn::Sequential net{nn::Conv2d(nn::Conv2dOptions(1, 4, 3)), nn::BatchNorm2d(4), nn::Flatten(),
                     Dropout(0.3), nn::Linear(4 * 4 * 4, 5)};
  const Samples samples{testing::values({kSamples, 1, 6, 6}, 1), testing::values({kSamples, 5}, 2)};
  DistributedSampler sampler(std::size_t{kSamples}, *group, {.seed = 5});
  std::string lines;
  const auto note = [&](const std::string& line) {
    if (line.find("shares") != std::string::npos) lines += "\n" + line;
  };
  Trainer trainer(net, group,
                  {.epochs = 8,
                   .microbatches = kMicrobatches,
                   .balance_load = true,
                   .shard_optimizer = training.shard_optimizer && group->size() > 1,
                   .log = note});
  trainer.optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2));
  const bool is_slow = group->size() > 1 && group->rank() == group->size() - 1;
  const auto loss = [&](auto& model, auto& batch) {
    if (is_slow) std::this_thread::sleep_for(kDelayOfSlowRank);
    return at::mse_loss(model(batch.data), batch.target);
  };
  const FitOptions fit{.sampler = &sampler};
  if (training.loader == Loader::memory) {
    MemoryLoader loader(samples.data, samples.target, sampler, {.batch_size = 3});
    trainer.fit(loader, loss, fit);
  } else {
    DataLoader loader(samples, sampler, {.batch_size = 3, .workers = 2});
    trainer.fit(loader, loss, fit);
  }
  auto* const sharded = dynamic_cast<optim::ShardedOptimizer*>(&trainer.optimizer());
  if (sharded != nullptr) sharded->consolidate_state();
  return group->rank() == 0 ? state_sha256(*net, trainer.optimizer()) + lines : "";
}

std::string outcome_of(const SlowTraining& training) {
  return run_ranks(training.ranks,
                   [&](Rank& rank) {
                     const auto group = training.ranks > 1 ? testing::join(rank, {.backend = "shm"})
                                                           : make_self_group();
                     rank.report(train_with_a_slow_rank(training, group));
                   })
      .front()
      .result;
}

// Other programs may disturb the times that decide which microbatches move, but not in each of
// these trainings.
void expect_same_bits_with_other_shares(const SlowTraining& training) {
  static const std::string expected = outcome_of({.ranks = 1});
  EXPECT_EQ(expected.size(), 64U);
  std::string outcome;
  for (int attempt = 0; attempt < 3 && outcome.find(": shares ") == std::string::npos; ++attempt) {
    outcome = outcome_of(training);
    EXPECT_EQ(outcome.substr(0, 64), expected);
  }
  EXPECT_THAT(outcome, HasSubstr(": shares ")) << "no microbatch has moved";
}

TEST(BalancedTraining, MovesMicrobatchesAndKeepsTheBits) {
  expect_same_bits_with_other_shares({.ranks = 2});
  expect_same_bits_with_other_shares({.ranks = 3});
}

TEST(BalancedTraining, DropsWhatWorkersHaveLoadedForTheOldShares) {
  expect_same_bits_with_other_shares({.ranks = 2, .loader = Loader::workers});
}

TEST(BalancedTraining, KeepsTheBitsOfAShardedOptimizer) {
  expect_same_bits_with_other_shares({.ranks = 2, .shard_optimizer = true});
}

// Its workers still load when the loop is left.
TEST(BalancedTraining, RefusesWorkersOfLibtorchsDataLoader) {
  const auto group = make_self_group();
  torch::nn::Sequential net{torch::nn::Linear(4, 1)};
  DistributedSampler sampler(16, *group);
  auto data =
      torch::data::datasets::TensorDataset(std::vector<at::Tensor>{testing::values({16, 4}, 1)});
  auto loader = torch::data::make_data_loader(
      data.map(torch::data::transforms::Stack<torch::data::TensorExample>()), sampler,
      torch::data::DataLoaderOptions().batch_size(2).workers(1));
  Trainer trainer(net, group, {.microbatches = 2, .balance_load = true});
  trainer.optimize_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  const auto loss = [](auto& model, auto& batch) { return model(batch.data).mean(); };
  EXPECT_THAT(
      testing::message_of<UsageError>([&] { trainer.fit(*loader, loss, {.sampler = &sampler}); }),
      AllOf(HasSubstr("balance_load deals the rest of an epoch anew"),
            HasSubstr("use a DataLoader, a MemoryLoader, or no workers")));
}

}  // namespace
}  // namespace lockstep
