// SPDX-License-Identifier: BSD-3-Clause
// Training in microbatches has the same bits in one process, in replicas and on any number of
// ranks. Every training runs in processes of its own, so that none finds what another one left.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/join.h"
#include "support/rank_processes.h"
#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_sha256.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/curriculum_sampler.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/dropout.h"
#include "lockstep/parallel/errors.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::Rank;
using testing::run_ranks;

// What is trained, and on what.
struct Training {
  std::function<torch::nn::Sequential()> make_net;
  std::vector<std::int64_t> input;  // the sizes of a sample
  std::function<void(Trainer<torch::nn::Sequential>&)> optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
  };
  std::int64_t samples = 50;
  std::size_t batch_size = 3;
  TrainerOptions options = {.epochs = 2, .microbatches = 4};
  std::function<void(torch::nn::Sequential&, std::int64_t)> begin_epoch = [](auto&, auto) {};
  bool curriculum = false;
  // The input of this sample is NaN, if it is not negative.
  std::int64_t sample_of_nan = -1;
};

Training linear_training() {
  return {.make_net = [] { return torch::nn::Sequential{torch::nn::Linear(1, 1)}; }, .input = {1}};
}

Training mlp_training() {
  return {.make_net =
              [] {
                return torch::nn::Sequential{torch::nn::Linear(20, 33), torch::nn::ReLU(),
                                             Dropout(0.3), torch::nn::Linear(33, 10)};
              },
          .input = {20}};
}

Training cnn_training() {
  return {.make_net =
              [] {
                namespace nn = torch::nn;
                return nn::Sequential{nn::Conv2d(nn::Conv2dOptions(1, 8, 3)),
                                      nn::BatchNorm2d(8),
                                      nn::ReLU(),
                                      nn::MaxPool2d(2),
                                      nn::Conv2d(nn::Conv2dOptions(8, 12, 3)),
                                      nn::BatchNorm2d(12),
                                      nn::ReLU(),
                                      nn::Flatten(),
                                      Dropout(0.5),
                                      nn::Linear(12 * 3 * 3, 10)};
              },
          .input = {1, 12, 12}};
}

// Two layers and what goes around them.
struct ResidualBlockImpl : torch::nn::Cloneable<ResidualBlockImpl> {
  ResidualBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : in_(in), out_(out), stride_(stride) {
    reset();
  }
  void reset() override {
    namespace nn = torch::nn;
    body = register_module(
        "body",
        nn::Sequential(
            nn::Conv2d(nn::Conv2dOptions(in_, out_, 3).stride(stride_).padding(1).bias(false)),
            nn::BatchNorm2d(out_), nn::ReLU(),
            nn::Conv2d(nn::Conv2dOptions(out_, out_, 3).padding(1).bias(false)),
            nn::BatchNorm2d(out_)));
    around = register_module(
        "around",
        nn::Sequential(nn::Conv2d(nn::Conv2dOptions(in_, out_, 1).stride(stride_).bias(false)),
                       nn::BatchNorm2d(out_)));
  }
  at::Tensor forward(const at::Tensor& input) {
    return at::relu(body->forward(input) + around->forward(input));
  }
  torch::nn::Sequential body{nullptr}, around{nullptr};

 private:
  std::int64_t in_, out_, stride_;
};
TORCH_MODULE(ResidualBlock);

// Like resnet18: the same layers, but few and narrow.
Training resnet_training() {
  return {.make_net =
              [] {
                namespace nn = torch::nn;
                return nn::Sequential{nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)),
                                      nn::BatchNorm2d(8),
                                      nn::ReLU(),
                                      ResidualBlock(8, 8, 1),
                                      ResidualBlock(8, 16, 2),
                                      nn::AdaptiveAvgPool2d(1),
                                      nn::Flatten(),
                                      nn::Linear(16, 10)};
              },
          .input = {3, 10, 10}};
}

// One block of a transformer that sees only earlier tokens. The inputs are numbers from -1 to 1,
// which become the numbers of tokens.
struct SmallTransformerImpl : torch::nn::Cloneable<SmallTransformerImpl> {
  static constexpr std::int64_t kTokens = 9;
  static constexpr std::int64_t kLength = 7;
  static constexpr std::int64_t kWidth = 16;

  SmallTransformerImpl() { reset(); }
  void reset() override {
    namespace nn = torch::nn;
    embedding = register_module("embedding", nn::Embedding(kTokens, kWidth));
    positions = register_parameter("positions", 0.1 * at::ones({kLength, kWidth}));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})));
    attention = register_module("attention", nn::MultiheadAttention(kWidth, 2));
    dropout = register_module("dropout", Dropout(0.2));
    feed = register_module("feed", nn::Sequential(nn::LayerNorm(nn::LayerNormOptions({kWidth})),
                                                  nn::Linear(kWidth, 2 * kWidth), nn::GELU(),
                                                  nn::Linear(2 * kWidth, kWidth), Dropout(0.2)));
    last = register_module("last", nn::Linear(kWidth, 10));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor hidden = embedding(((input + 1) * 4).to(at::kLong)) + positions;
    const at::Tensor by_position = norm(hidden).transpose(0, 1);
    const at::Tensor later =
        at::full({kLength, kLength}, -std::numeric_limits<double>::infinity(), at::kFloat).triu(1);
    const at::Tensor attended =
        std::get<0>(attention->forward(by_position, by_position, by_position,
                                       /*key_padding_mask=*/{}, /*need_weights=*/false, later));
    hidden = hidden + dropout(attended.transpose(0, 1));
    hidden = hidden + feed->forward(hidden);
    return last(hidden.mean(1));
  }
  torch::nn::Embedding embedding{nullptr};
  at::Tensor positions;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  Dropout dropout{nullptr};
  torch::nn::Sequential feed{nullptr};
  torch::nn::Linear last{nullptr};
};
TORCH_MODULE(SmallTransformer);

Training transformer_training() {
  return {.make_net = [] { return torch::nn::Sequential{SmallTransformer()}; },
          .input = {SmallTransformerImpl::kLength}};
}

struct Way {
  TrainingMode mode;
  int count = 1;  // of ranks or replicas

  std::string name() const {
    if (mode == TrainingMode::single) return "single";
    return fmt::format("{} {}", count, mode == TrainingMode::distributed ? "ranks" : "replicas");
  }
};

// The hash on each rank, for which it gathers the state of a sharded optimizer.
std::string whole_state_sha256(const torch::nn::Module& net, torch::optim::Optimizer& optimizer,
                               const ProcessGroup& group) {
  auto* const sharded = dynamic_cast<optim::ShardedOptimizer*>(&optimizer);
  std::string hash;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (sharded != nullptr) sharded->consolidate_state(rank);
    if (rank == group.rank()) hash = state_sha256(net, optimizer);
  }
  return hash;
}

// Trains, and returns the hash of the state; `stop_after` steps, if positive, it throws.
std::string hash_of_training(const Training& training, const std::shared_ptr<ProcessGroup>& group,
                             TrainerOptions options, std::int64_t stop_after = 0) {
  std::vector<std::int64_t> sizes{training.samples};
  sizes.insert(sizes.end(), training.input.begin(), training.input.end());
  const at::Tensor data = testing::values(sizes, 1);
  if (training.sample_of_nan >= 0) data[training.sample_of_nan].fill_(std::nan(""));
  torch::nn::Sequential net = training.make_net();
  testing::set_weights(*net, 3);
  const std::int64_t outputs = net->parameters().back().size(0);
  const at::Tensor target = testing::values({training.samples, outputs}, 2);
  const auto count = static_cast<std::size_t>(training.samples);
  DistributedSampler of_all(count, *group, {.seed = 5});
  const auto batch_size = static_cast<std::int64_t>(training.batch_size);
  CurriculumSampler from_easy(
      count, testing::values({training.samples}, 4), *group,
      {.global_batch_size = options.microbatches * batch_size, .full_at_step = 7, .seed = 5});
  EpochSampler& sampler = training.curriculum ? static_cast<EpochSampler&>(from_easy) : of_all;
  const MemoryLoaderOptions loading{.batch_size = training.batch_size};
  MemoryLoader loader = training.curriculum ? MemoryLoader(data, target, from_easy, loading)
                                            : MemoryLoader(data, target, of_all, loading);
  const bool shards = options.shard_optimizer && group->size() > 1;
  Trainer trainer(net, group, std::move(options));
  training.optimize(trainer);
  if (shards) {
    EXPECT_TRUE(dynamic_cast<optim::ShardedOptimizer&>(trainer.optimizer()).is_sharded());
  }
  FitOptions fit{.sampler = &sampler,
                 .begin_epoch = [&](std::int64_t epoch) { training.begin_epoch(net, epoch); }};
  if (stop_after > 0) {
    fit.after_step = [&](const StepSummary& step) {
      if (step.step == stop_after) throw std::runtime_error("the program stops here");
    };
  }
  const auto reduction = training.options.loss_reduction == LossReduction::sum
                             ? at::Reduction::Sum
                             : at::Reduction::Mean;
  trainer.fit(
      loader,
      [reduction](auto& model, auto& batch) {
        return at::mse_loss(model(batch.data), batch.target, reduction);
      },
      fit);
  return whole_state_sha256(*net, trainer.optimizer(), *group);
}

// The hash of each rank, or the error because of which it has none.
std::vector<std::string> hashes(const Training& training, const Way& way,
                                std::int64_t stop_after = 0) {
  const bool distributed = way.mode == TrainingMode::distributed;
  const auto outcomes = run_ranks(distributed ? way.count : 1, [&](Rank& rank) {
    const auto group = distributed ? testing::join(rank, {.backend = "shm"}) : make_self_group();
    TrainerOptions options = training.options;
    options.mode = way.mode;
    if (way.mode == TrainingMode::data_parallel) options.data_parallel.replicas = way.count;
    try {
      rank.report(hash_of_training(training, group, std::move(options), stop_after));
    } catch (const NonFiniteGradient& error) {
      rank.report(error.details().contexts.front().operation + ": " + error.details().cause);
    } catch (const std::runtime_error& error) {
      if (stop_after == 0) throw;
    }
  });
  std::vector<std::string> found;
  for (const auto& outcome : outcomes) found.push_back(outcome.result);
  return found;
}

void expect_same_hashes(const Training& training, const std::vector<Way>& ways,
                        const std::string& what) {
  const std::string expected = hashes(training, {TrainingMode::single}).front();
  EXPECT_EQ(expected.size(), 64U) << what;
  for (const Way& way : ways) {
    for (const std::string& hash : hashes(training, way)) {
      EXPECT_EQ(hash, expected) << what << ", " << way.name();
    }
  }
}

const std::vector<Way> kAllWays{{TrainingMode::data_parallel, 2}, {TrainingMode::data_parallel, 3},
                                {TrainingMode::distributed, 1},   {TrainingMode::distributed, 2},
                                {TrainingMode::distributed, 3},   {TrainingMode::distributed, 4}};
const std::vector<Way> kFewWays{{TrainingMode::data_parallel, 3}, {TrainingMode::distributed, 3}};

TEST(Microbatches, HaveTheSameBitsInAllModesAndForAllNumbersOfRanks) {
  expect_same_hashes(linear_training(), kAllWays, "linear");
  expect_same_hashes(mlp_training(), kAllWays, "mlp");
  expect_same_hashes(cnn_training(), kAllWays, "cnn");
  expect_same_hashes(resnet_training(), kAllWays, "resnet");
  expect_same_hashes(transformer_training(), kAllWays, "transformer");
}

TEST(Microbatches, NeedNotBeAPowerOfTwo) {
  std::vector<Way> ways = kAllWays;
  ways.push_back({TrainingMode::distributed, 5});
  ways.push_back({TrainingMode::distributed, 6});
  for (Training training : {mlp_training(), cnn_training()}) {
    training.options.microbatches = 6;
    expect_same_hashes(training, ways, "six microbatches");
  }
}

// 50 samples leave a step of 2 behind 4 steps of 12: two of its microbatches are empty.
TEST(Microbatches, HaveTheSameBitsForSizesThatDoNotDivide) {
  for (const std::int64_t samples : {1, 13, 47}) {
    Training training = mlp_training();
    training.samples = samples;
    expect_same_hashes(training, kFewWays, fmt::format("{} samples", samples));
  }
}

TEST(Microbatches, HaveTheSameBitsWithEachOptimizerAndWithClipping) {
  Training training = cnn_training();
  training.options.max_grad_norm = 0.05;
  expect_same_hashes(training, kFewWays, "SGD with momentum");
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2));
  };
  expect_same_hashes(training, kFewWays, "Adam");
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  };
  expect_same_hashes(training, kFewWays, "AdamW");
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<torch::optim::Adam>(torch::optim::AdamOptions(1e-2));
  };
  expect_same_hashes(training, kFewWays, "libtorch's Adam");
}

// One process has an optimizer that is not sharded.
TEST(Microbatches, HaveTheSameBitsWithAShardedOptimizer) {
  Training training = cnn_training();
  training.options.max_grad_norm = 0.05;
  training.options.shard_optimizer = true;
  expect_same_hashes(training, kFewWays, "SGD with momentum");
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
  };
  expect_same_hashes(training, kAllWays, "Adam");
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::AdamW>(torch::optim::AdamWOptions(1e-2));
  };
  expect_same_hashes(training, kFewWays, "AdamW");
}

TEST(Microbatches, HaveTheSameBitsWithOneCopyPerHost) {
  Training training = cnn_training();
  training.options.max_grad_norm = 0.05;
  training.options.shard_optimizer = true;
  training.options.distributed.one_copy_per_host = true;
  expect_same_hashes(training, kFewWays, "SGD with momentum");
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
  };
  expect_same_hashes(training, kFewWays, "Adam");
}

// They have the whole gradients, which ranks can compare.
TEST(Microbatches, AreComparedWithOneCopyPerHost) {
  Training training = mlp_training();
  const std::string expected = hashes(training, {TrainingMode::single}).front();
  training.options.check_in_sync = 1;
  training.options.shard_optimizer = true;
  training.options.distributed.one_copy_per_host = true;
  for (const std::string& hash : hashes(training, {TrainingMode::distributed, 2})) {
    EXPECT_EQ(hash, expected);
  }
}

TEST(Microbatches, DoNotFillTheBucketsOfAShardedOptimizer) {
  run_ranks(2, [](Rank& rank) {
    const auto group = testing::join(rank, {.backend = "shm"});
    torch::nn::Sequential net = mlp_training().make_net();
    TrainerOptions options{.microbatches = 2, .shard_optimizer = true};
    Trainer trainer(net, group, options);
    EXPECT_THAT(testing::message_of<UsageError>([&] {
                  trainer.optimize_with(std::make_unique<optim::SGD>(
                      *trainer.model().distributed().ptr(), torch::optim::SGDOptions(0.1)));
                }),
                HasSubstr("make it from the module's parameters and the group"));
    options.distributed.whole_gradients = false;
    EXPECT_THAT(testing::message_of<UsageError>([&] { Trainer divided(net, group, options); }),
                HasSubstr("microbatches give every rank the whole gradients"));
  });
}

TEST(Microbatches, HaveTheSameBitsWithSumsOfLosses) {
  Training training = mlp_training();
  training.options.loss_reduction = LossReduction::sum;
  expect_same_hashes(training, kFewWays, "sums");
}

TEST(Microbatches, HaveTheSameBitsInBfloat16) {
  for (auto [training, what] : {std::pair{mlp_training(), "mlp"}, std::pair{cnn_training(), "cnn"},
                                std::pair{transformer_training(), "transformer"}}) {
    training.options.amp = at::kBFloat16;
    expect_same_hashes(training, kFewWays, what);
  }
}

TEST(Microbatches, HaveTheSameBitsOnRanksThatAreThreads) {
  for (const Training& training : {mlp_training(), cnn_training()}) {
    const std::string expected = hashes(training, {TrainingMode::single}).front();
    run_ranks(1, [&](Rank&) {
      testing::run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
        TrainerOptions options = training.options;
        options.mode = TrainingMode::distributed;
        EXPECT_EQ(hash_of_training(training, group, std::move(options)), expected);
      });
    });
  }
}

// A parameter that is used by some microbatches only, or by none.
struct SometimesUsedImpl : torch::nn::Cloneable<SometimesUsedImpl> {
  SometimesUsedImpl() { reset(); }
  void reset() override {
    always = register_module("always", torch::nn::Linear(20, 10));
    sometimes = register_module("sometimes", torch::nn::Linear(20, 10));
    never = register_module("never", torch::nn::Linear(20, 10));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor output = always(input);
    return input[0][0].item<double>() > 0 ? output + sometimes(input) : output;
  }
  torch::nn::Linear always{nullptr}, sometimes{nullptr}, never{nullptr};
};
TORCH_MODULE(SometimesUsed);

TEST(Microbatches, HaveTheSameBitsIfSomeDoNotUseAParameter) {
  Training training = mlp_training();
  training.make_net = [] { return torch::nn::Sequential{SometimesUsed()}; };
  training.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::AdamW>(
        torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  };
  expect_same_hashes(training, kAllWays, "unused parameters");
}

// libtorch's Dropout draws from the default generator, which belongs to a process.
TEST(Microbatches, KeyTheDefaultGeneratorOfAProcess) {
  Training training = mlp_training();
  training.make_net = [] {
    return torch::nn::Sequential{torch::nn::Linear(20, 33), torch::nn::Dropout(0.3),
                                 torch::nn::Linear(33, 10)};
  };
  expect_same_hashes(training, {{TrainingMode::distributed, 2}, {TrainingMode::distributed, 3}},
                     "torch::nn::Dropout");
}

// Replicas and one process have an optimizer that is not sharded.
TEST(Microbatches, ResumeInTheMiddleOfAnEpochOnAnotherNumberOfRanks) {
  Training sharded = cnn_training();
  sharded.options.shard_optimizer = true;
  Training one_copy = sharded;
  one_copy.options.distributed.one_copy_per_host = true;
  Training curriculum = mlp_training();
  curriculum.curriculum = true;
  Training adam = mlp_training();
  adam.options.max_grad_norm = 0.05;
  adam.optimize = [](auto& trainer) {
    trainer.template optimize_with<optim::Adam>(torch::optim::AdamOptions(1e-2).amsgrad(true));
  };
  for (auto [training, what] :
       {std::pair{cnn_training(), "cnn"}, std::pair{sharded, "sharded"},
        std::pair{one_copy, "one copy"}, std::pair{curriculum, "curriculum"},
        std::pair{adam, "Adam with clipping"}}) {
    const std::string expected = hashes(training, {TrainingMode::single}).front();
    const testing::TemporaryFolder folder;
    training.options.checkpoints = TrainerCheckpointOptions{
        .folder = folder.path() / "checkpoints", .every_steps = 1, .resume = true};
    hashes(training, {TrainingMode::distributed, 2}, /*stop_after=*/3);
    hashes(training, {TrainingMode::data_parallel, 3}, /*stop_after=*/4);
    hashes(training, {TrainingMode::distributed, 4}, /*stop_after=*/7);
    hashes(training, {TrainingMode::single}, /*stop_after=*/9);
    for (const std::string& hash : hashes(training, {TrainingMode::distributed, 3})) {
      EXPECT_EQ(hash, expected) << what;
    }
  }
}

// The global batch is no multiple of 4 ranks, and the last one of an epoch is smaller.
TEST(Microbatches, HaveTheSameBitsWithACurriculum) {
  Training training = mlp_training();
  training.curriculum = true;
  training.options.microbatches = 6;
  expect_same_hashes(training, kAllWays, "curriculum");
}

TEST(Microbatches, HaveTheSameBitsIfParametersAreFrozenForAnEpoch) {
  for (const char* const what : {"frozen", "frozen, sharded", "frozen, one copy"}) {
    Training training = mlp_training();
    training.options.shard_optimizer = what != std::string("frozen");
    training.options.distributed.one_copy_per_host = what == std::string("frozen, one copy");
    training.options.epochs = 3;
    training.begin_epoch = [](torch::nn::Sequential& net, std::int64_t epoch) {
      net->parameters().front().set_requires_grad(epoch != 1);
    };
    expect_same_hashes(training, kFewWays, what);
  }
}

TEST(Microbatches, RefuseOtherParametersWithinAnEpoch) {
  const auto group = make_self_group();
  torch::nn::Sequential net{torch::nn::Linear(4, 4), torch::nn::Linear(4, 1)};
  DistributedSampler sampler(16, *group);
  MemoryLoader loader(testing::values({16, 4}, 1), testing::values({16, 1}, 2), sampler,
                      {.batch_size = 2});
  Trainer trainer(net, group, {.epochs = 1, .microbatches = 2});
  trainer.optimize_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1));
  const FitOptions freezing{.sampler = &sampler, .after_step = [&](const StepSummary&) {
                              net->parameters().front().requires_grad_(false);
                            }};
  const auto loss = [](auto& model, auto& batch) {
    return at::mse_loss(model(batch.data), batch.target);
  };
  EXPECT_THAT([&] { trainer.fit(loader, loss, freezing); },
              ::testing::ThrowsMessage<UsageError>(::testing::HasSubstr("within an epoch")));
}

TEST(Microbatches, NameAGradientThatIsNotFiniteAndItsRankAlikeOnEveryRank) {
  Training training = mlp_training();
  training.options.check_finite = true;
  training.sample_of_nan = 17;
  const std::string alone = hashes(training, {TrainingMode::single}).front();
  const std::string where = alone.substr(0, alone.find(';'));
  EXPECT_THAT(where, MatchesRegex("epoch 1/2, step ./5: the gradient of 0.weight is not finite"));
  EXPECT_THAT(hashes(training, {TrainingMode::data_parallel, 3}), Each(alone));
  const std::vector<std::string> of_ranks = hashes(training, {TrainingMode::distributed, 3});
  EXPECT_THAT(of_ranks, Each(of_ranks.front()));
  EXPECT_THAT(of_ranks.front(), MatchesRegex(where + " on rank [0-2]; .*"));
}

}  // namespace
}  // namespace lockstep
