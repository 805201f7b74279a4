// SPDX-License-Identifier: BSD-3-Clause
// Trainings, alone and by rank processes: what they learn, and that both learn the same.
#include "tools/recipes/train.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/tools/recipes/tiny_data.h"
#include "tests/tools/recipes/tiny_images.h"
#include <gmock/gmock.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

InitOptions on_cpu() {
  InitOptions options;
  options.device = at::Device(at::kCPU);
  return options;
}

// Trains in new processes, so that the test itself starts no threads of libtorch. `lines` gets what
// rank 0 logs.
TrainResult train_with(TrainingMode mode, int ranks, const std::string& recipe,
                       RecipeOptions options, std::vector<std::string>* lines = nullptr) {
  options.trainer.mode = mode;
  int& replicas = options.trainer.data_parallel.replicas;
  replicas = std::max(replicas, 1);
  const auto results = spawn(ranks,
                             [&](int) {
                               const auto group = init_process_group(on_cpu());
                               std::string log;
                               const auto result =
                                   train(find_recipe(recipe), options, group,
                                         [&](const std::string& line) { log += line + "\n"; });
                               return log + to_json(result);
                             },
                             {.threads = 1, .prefix = false});
  std::istringstream text(results.front());
  std::string last;
  for (std::string line; std::getline(text, line); last = line) {
    if (lines != nullptr) lines->push_back(line);
  }
  if (lines != nullptr) lines->pop_back();
  return train_result_from_json(last);
}

TrainResult train_with(int ranks, const std::string& recipe, const RecipeOptions& options,
                       std::vector<std::string>* lines = nullptr) {
  return train_with(ranks == 1 ? TrainingMode::single : TrainingMode::distributed, ranks, recipe,
                    options, lines);
}

class LinearRecipe : public ::testing::TestWithParam<int> {};

TEST_P(LinearRecipe, LearnsTheLineToTwoDecimals) {
  const TrainResult result = train_with(GetParam(), "linear", {});
  EXPECT_NEAR(*result.weight, 2, 0.005);
  EXPECT_NEAR(*result.bias, 3, 0.005);
  EXPECT_NEAR(result.loss, 0.01, 0.001);  // the noise's variance
  EXPECT_EQ(result.ranks, GetParam());
  EXPECT_EQ(result.global_batch_size, 32 * GetParam());
}

INSTANTIATE_TEST_SUITE_P(Ranks, LinearRecipe, ::testing::Values(1, 2));

std::vector<at::Tensor> load_parameters(const std::string& recipe,
                                        const std::filesystem::path& file) {
  auto net = find_recipe(recipe).make_net();
  torch::load(net, file.string());
  return net->parameters();
}

class SameTraining : public ::testing::TestWithParam<const char*> {};

void expect_close(const TrainResult& result, const TrainResult& single,
                  const std::filesystem::path& folder) {
  const auto expected = load_parameters(single.recipe, folder / "single.pt");
  const auto actual = load_parameters(single.recipe, folder / (result.mode + ".pt"));
  ASSERT_EQ(actual.size(), expected.size());
  // The parts' sums are rounded in another order. Adam turns that into steps of up to its learning
  // rate, in single weights whose gradient is nearly zero.
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_LT((actual[i] - expected[i]).abs().max().item<double>(), 0.01) << "parameter " << i;
    EXPECT_LT((actual[i] - expected[i]).norm().item<double>(),
              0.02 * (1 + expected[i].norm().item<double>()))
        << "parameter " << i;
  }
  EXPECT_NEAR(result.loss, single.loss, 0.02);
  EXPECT_EQ(result.batch_size, 10);
  if (single.accuracy) {
    EXPECT_NEAR(*result.accuracy, *single.accuracy, 0.03);
  }
}

TEST_P(SameTraining, AloneAndInTwoParts) {
  const testing::TemporaryFolder folder;
  const Recipe recipe = find_recipe(GetParam());
  RecipeOptions options{.epochs = 3, .global_batch_size = 20, .seed = 5};
  // Whole batches, so that no rank is given a sample twice.
  options.data_folder = testing::tiny_data(recipe, folder, 300);

  options.save_file = folder.path() / "single.pt";
  const TrainResult single = train_with(1, GetParam(), options);
  EXPECT_EQ(single.batch_size, 20);
  options.save_file = folder.path() / "ddp.pt";
  expect_close(train_with(TrainingMode::distributed, 2, GetParam(), options), single,
               folder.path());

  options.save_file = folder.path() / "dp.pt";
  options.trainer.data_parallel.replicas = 2;
  const TrainResult dp = train_with(TrainingMode::data_parallel, 1, GetParam(), options);
  expect_close(dp, single, folder.path());
  EXPECT_EQ(dp.ranks, 1);
  EXPECT_EQ(dp.replicas, 2);
}

INSTANTIATE_TEST_SUITE_P(Recipes, SameTraining,
                         ::testing::Values("linear", "mlp", "cnn", "char-transformer"));

// Without SyncBatchNorm, the ranks' losses would differ from the first step on, as the losses of
// replicas do, which normalize their own parts of a batch.
TEST(Train, NormalizesTheBatchesOfAllRanksTogether) {
  const testing::TemporaryFolder folder;
  const RecipeOptions options{.epochs = 1,
                              .global_batch_size = 20,
                              .data_folder = testing::tiny_data(resnet18_recipe(), folder, 60),
                              .seed = 5};
  const TrainResult single = train_with(1, "resnet18", options);
  const TrainResult ddp = train_with(TrainingMode::distributed, 2, "resnet18", options);
  RecipeOptions in_parts = options;
  in_parts.trainer.data_parallel.replicas = 2;
  const TrainResult dp = train_with(TrainingMode::data_parallel, 1, "resnet18", in_parts);
  ASSERT_EQ(single.losses.size(), 3u);
  EXPECT_NEAR(ddp.losses[0].loss, single.losses[0].loss, 1e-4);
  EXPECT_NEAR(ddp.losses[2].loss, single.losses[2].loss, 0.05);
  EXPECT_GT(std::abs(dp.losses[0].loss - single.losses[0].loss), 1e-3);
  EXPECT_TRUE(dp.accuracy.has_value());
}

// The optimizer of mlp is sharded only with one copy.
TEST(Train, TrainsTheSameNetIfRanksHaveOneCopyOfIt) {
  for (const char* const name : {"mlp", "cnn"}) {
    const testing::TemporaryFolder folder;
    RecipeOptions options{.epochs = 1,
                          .global_batch_size = 20,
                          .data_folder = testing::tiny_data(find_recipe(name), folder, 60)};
    options.save_file = folder.path() / "copies.pt";
    const TrainResult copies = train_with(2, name, options);
    options.trainer.distributed.one_copy_per_host = true;
    options.save_file = folder.path() / "one.pt";
    EXPECT_EQ(train_with(2, name, options).loss, copies.loss) << name;
    const auto expected = load_parameters(name, folder.path() / "copies.pt");
    const auto found = load_parameters(name, folder.path() / "one.pt");
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(found[i], expected[i])) << name << " " << i;
    }
  }
}

TEST(Train, TrainsTheSameNetIfBackwardComputesBlocksAgain) {
  for (const char* const name : {"resnet18", "char-transformer"}) {
    const testing::TemporaryFolder folder;
    const Recipe recipe = find_recipe(name);
    RecipeOptions options{.epochs = 1,
                          .global_batch_size = 20,
                          .data_folder = testing::tiny_data(recipe, folder, 60)};
    options.save_file = folder.path() / "once.pt";
    train_with(2, name, options);
    options.recompute = true;
    options.save_file = folder.path() / "twice.pt";
    train_with(2, name, options);
    auto once = recipe.make_net();
    auto twice = recipe.make_net();
    torch::load(once, (folder.path() / "once.pt").string());
    torch::load(twice, (folder.path() / "twice.pt").string());
    const auto expected = once->named_parameters();
    for (const auto& item : twice->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << name << " " << item.key();
    }
    const auto expected_buffers = once->named_buffers();
    for (const auto& item : twice->named_buffers()) {
      EXPECT_TRUE(torch::equal(item.value(), expected_buffers[item.key()]))
          << name << " " << item.key();
    }
  }
}

TEST(Train, LearnsText) {
  const testing::TemporaryFolder folder;
  std::vector<std::string> lines;
  RecipeOptions options{.epochs = 3,
                        .batch_size = 5,
                        .data_folder = testing::tiny_data(char_transformer_recipe(), folder, 301)};
  const TrainResult result = train_with(2, "char-transformer", options, &lines);
  EXPECT_LT(*result.bits_per_character, 1);
  EXPECT_NEAR(*result.bits_per_character, result.loss / std::log(2.0), 1e-9);
  EXPECT_LT(*result.test_bits_per_character, *result.bits_per_character);
  EXPECT_GT(*result.accuracy, 0.9);
  EXPECT_THAT(lines.front(),
              HasSubstr("char-transformer: 867328 parameters, 301 samples, 2 ranks"));
  EXPECT_THAT(lines.back(), ::testing::MatchesRegex("0\\.[0-9]+ bits per character, 0\\.[0-9]+ on "
                                                    "the test text, where [0-9.]+ % of the next "
                                                    "characters are right"));
}

TEST(Train, HasNoLossIfNoEpochIsLeftToTrain) {
  const testing::TemporaryFolder folder;
  const RecipeOptions options{
      .trainer = {.checkpoints =
                      TrainerCheckpointOptions{.folder = folder.path() / "run", .resume = true}},
      .epochs = 1,
      .batch_size = 30,
      .data_folder = testing::tiny_data(char_transformer_recipe(), folder, 60)};
  const TrainResult first = train_with(1, "char-transformer", options);
  EXPECT_GT(first.loss, 0);
  std::vector<std::string> lines;
  const TrainResult second = train_with(1, "char-transformer", options, &lines);
  EXPECT_TRUE(std::isnan(second.loss));
  EXPECT_TRUE(std::isnan(*second.bits_per_character));
  EXPECT_EQ(second.test_bits_per_character, first.test_bits_per_character);
  EXPECT_FALSE(second.core_wait);  // there were no steps
  EXPECT_THAT(lines.front(), HasSubstr(" (or the checkpoint's)"));
  EXPECT_THAT(lines, Contains("nothing is left to train: the checkpoint includes epoch 1/1"));
  EXPECT_THAT(lines.back(), ::testing::MatchesRegex("[0-9.]+ bits per character on the test text,"
                                                    ".*are right"));
}

TEST(Train, LearnsImagesAndReportsItsProgress) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_images(folder);
  std::vector<std::string> lines;
  const TrainResult result =
      train_with(2, "mlp", {.epochs = 4, .batch_size = 1, .data_folder = folder.path()}, &lines);
  EXPECT_GT(*result.accuracy, 0.9);
  EXPECT_EQ(result.epochs, 4);
  EXPECT_GT(result.seconds, 0);
  EXPECT_GE(result.seconds, result.seconds_per_epoch);
  EXPECT_NEAR(result.samples_per_second, 301 / result.seconds_per_epoch, 1);
  // The start, a line at step 100 of each epoch, a mean an epoch, the accuracy; and the load's.
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("The load "); });
  EXPECT_THAT(lines, SizeIs(1 + 4 + 4 + 1));
  EXPECT_THAT(lines, Contains(HasSubstr("epoch 2/4, step 100/151: loss ")));
  EXPECT_THAT(lines, Contains(HasSubstr("epoch 4/4: mean loss ")));
  EXPECT_THAT(lines, Contains(HasSubstr("test accuracy ")));
}

TEST(Train, FollowsACurriculumInEachMode) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_images(folder, 300);
  RecipeOptions options{.epochs = 3,
                        .global_batch_size = 20,
                        .data_folder = folder.path(),
                        .seed = 5,
                        .save_file = folder.path() / "shuffled.pt"};
  const TrainResult shuffled = train_with(1, "mlp", options);
  options.curriculum = Curriculum{.pacing = Pacing::root, .start_share = 0.3, .full_at_step = 30};
  options.save_file = folder.path() / "single.pt";
  const TrainResult single = train_with(1, "mlp", options);
  // Hard images come late: only in the second of the three epochs of 15 steps.
  const auto second_epoch = [](const TrainResult& result) {
    double sum = 0;
    for (std::size_t step = 15; step < 30; ++step) sum += result.losses.at(step).loss;
    return sum;
  };
  EXPECT_GT(second_epoch(single), 2 * second_epoch(shuffled));
  options.save_file = folder.path() / "ddp.pt";
  expect_close(train_with(TrainingMode::distributed, 2, "mlp", options), single, folder.path());
  options.save_file = folder.path() / "dp.pt";
  options.trainer.data_parallel.replicas = 2;
  expect_close(train_with(TrainingMode::data_parallel, 1, "mlp", options), single, folder.path());
}

TEST(ProbeLosses, AreTheSameOnEveryRankAndLowerForEasyImages) {
  const auto losses_on = [](int ranks) {
    return spawn(ranks,
                 [](int) {
                   const auto group = init_process_group(on_cpu());
                   torch::manual_seed(1);
                   const at::Tensor targets = torch::arange(1000).remainder(10);
                   const at::Tensor noise = torch::rand({1000, 1, 28, 28});
                   // The first half shows its label clearly.
                   const at::Tensor clear = torch::ones({1000, 1});
                   clear.slice(0, 500).fill_(0.1);
                   const at::Tensor inputs =
                       noise + 20 * (torch::one_hot(targets, 28) * clear).view({1000, 1, 28, 1});
                   const at::Tensor losses = probe_losses({inputs, targets, {}, {}}, 3, *group);
                   std::vector<float> values(losses.data_ptr<float>(),
                                             losses.data_ptr<float>() + 1000);
                   return values;
                 },
                 {.threads = 1, .prefix = false});
  };
  const auto alone = losses_on(1);
  const auto both = losses_on(2);
  EXPECT_EQ(both[0], alone[0]);
  EXPECT_EQ(both[1], alone[0]);
  const auto mean = [&](int begin) {
    return std::accumulate(alone[0].begin() + begin, alone[0].begin() + begin + 500, 0.0) / 500;
  };
  EXPECT_LT(mean(0), mean(500) / 2);
}

TEST(Train, ScalesTheLearningRate) {
  // So small a rate that the way is proportional to the sum of the rates.
  RecipeOptions options{.epochs = 1, .learning_rate = 1e-12, .seed = 3};
  const double start = *train_with(1, "linear", options).bias;
  options.learning_rate = 2e-6;
  const double once = *train_with(1, "linear", options).bias - start;
  options.trainer.lr_scale = 4;
  const double scaled = *train_with(1, "linear", options).bias - start;
  // 31 of the 313 steps warm up, with 2.45 times the rate on average; 4 would be without.
  EXPECT_NEAR(scaled / once, (31 * 2.45 + 282 * 4) / 313, 0.06);
}

TEST(Train, LearnsInHalfPrecision) {
  const testing::TemporaryFolder folder;
  testing::write_tiny_images(folder);
  RecipeOptions options{.trainer = {.amp = at::kBFloat16},
                        .epochs = 4,
                        .batch_size = 1,
                        .data_folder = folder.path()};
  const TrainResult exact =
      train_with(2, "mlp", {.epochs = 4, .batch_size = 1, .data_folder = folder.path()});
  EXPECT_EQ(exact.amp, "");
  const TrainResult rounded = train_with(2, "mlp", options);
  EXPECT_EQ(rounded.amp, "bf16");
  EXPECT_GT(*rounded.accuracy, 0.9);
  EXPECT_NE(rounded.loss, exact.loss);
  EXPECT_NEAR(rounded.loss, exact.loss, 0.05);
  options.trainer.amp = at::kHalf;
  if (libtorch::kHasHalfOnCpu) {
    // cnn's optimizer is sharded, and gets divided gradients.
    for (const char* recipe : {"mlp", "cnn"}) {
      EXPECT_GT(*train_with(2, recipe, options).accuracy, 0.9) << recipe;
    }
  } else {
    EXPECT_THAT([&] { train_with(2, "mlp", options); },
                ThrowsMessage<RankFailed>(HasSubstr("lacks the kernels for float16 on CPUs")));
  }
}

TEST(Train, TrainsTheLargerNetsInHalfPrecision) {
  for (const Recipe& recipe : {resnet18_recipe(), char_transformer_recipe()}) {
    const testing::TemporaryFolder folder;
    RecipeOptions options{.epochs = 1,
                          .global_batch_size = 20,
                          .data_folder = testing::tiny_data(recipe, folder, 40)};
    const TrainResult exact = train_with(2, recipe.name, options);
    options.trainer.amp = at::kBFloat16;
    const TrainResult ddp = train_with(2, recipe.name, options);
    EXPECT_NE(ddp.loss, exact.loss) << recipe.name;
    EXPECT_NEAR(ddp.loss, exact.loss, 0.1 * exact.loss) << recipe.name;
    options.trainer.data_parallel.replicas = 2;
    const TrainResult dp = train_with(TrainingMode::data_parallel, 1, recipe.name, options);
    EXPECT_NEAR(dp.loss, exact.loss, 0.3 * exact.loss) << recipe.name;
  }
}

TEST(Train, SkippingStepsRulesOutEndingAtOne) {
  EXPECT_THAT(
      [] { train_with(1, "linear", {.trainer = {.amp = at::kHalf, .check_finite = true}}); },
      ThrowsMessage<RankFailed>(HasSubstr("training in fp16 skips steps whose gradients are not")));
}

// So large a rate that the weights overflow within a few steps.
const RecipeOptions kDiverging{
    .trainer = {.check_finite = true}, .epochs = 1, .learning_rate = 1e30};

TEST(Train, EndsWithTheFirstGradientThatIsNotFiniteIfAskedTo) {
  EXPECT_THAT(
      [] { train_with(2, "linear", kDiverging); },
      ThrowsMessage<RankFailed>(
          AllOf(HasSubstr("[Trainer] epoch 1/1, step "), HasSubstr("/157"), HasSubstr("[reducer]"),
                HasSubstr("the gradient of 0.weight is not finite on ranks 0 and 1"))));
  for (const TrainingMode mode : {TrainingMode::single, TrainingMode::data_parallel}) {
    RecipeOptions options = kDiverging;
    if (mode == TrainingMode::data_parallel) options.trainer.data_parallel.replicas = 2;
    EXPECT_THAT(
        [&] { train_with(mode, 1, "linear", options); },
        ThrowsMessage<RankFailed>(
            AllOf(HasSubstr("[Trainer] epoch 1/1, step "),
                  HasSubstr(": the gradient of 0.weight is not finite; the gradient of 0.bias"))));
  }
}

// Its options say nothing of its factor.
class ScaledSgd final : public torch::optim::SGD {
 public:
  ScaledSgd(std::vector<at::Tensor> parameters, double rate, double factor)
      : SGD(std::move(parameters), rate), factor_(factor) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    for (const at::Tensor& parameter : param_groups()[0].params()) parameter.grad().mul_(factor_);
    return SGD::step(std::move(closure));
  }

 private:
  double factor_;
};

TEST(Train, EndsWhenRanksAreOutOfSyncIfAskedTo) {
  const auto train_two = [](bool alike, std::int64_t every) {
    spawn(2,
          [&](int rank) {
            Recipe recipe = linear_recipe();
            recipe.make_optimizer = [&](const Trained& trained, double rate) {
              return std::make_unique<ScaledSgd>(trained.parameters, rate,
                                                 alike || rank == 0 ? 1 : 0.5);
            };
            const auto group = init_process_group(on_cpu());
            (void)train(recipe,
                        {.trainer = {.mode = TrainingMode::distributed, .check_in_sync = every},
                         .epochs = 1,
                         .batch_size = 500},
                        group, [](const auto&) {});
          },
          {.threads = 1, .prefix = false});
  };
  train_two(true, 1);
  EXPECT_THAT([&] { train_two(false, 7); },
              ThrowsMessage<RankFailed>(AllOf(HasSubstr("[Trainer] epoch 1/1, step 7/10"),
                                              HasSubstr("parameter 0.weight has one value on rank "
                                                        "0, another on rank 1"))));
  train_two(false, 11);  // never comes to that
}

template <class... Optimizers>
bool is_sharded(torch::optim::Optimizer& optimizer) {
  bool sharded = false;
  const auto look = [&]<class Optimizer>(const Optimizer* one) {
    if (one != nullptr) sharded = one->is_sharded();
    return one != nullptr;
  };
  EXPECT_TRUE((look(dynamic_cast<const Optimizers*>(&optimizer)) || ...));
  return sharded;
}

TEST(Train, ShardsTheOptimizerOverTheRanks) {
  const auto sharded = [](const std::string& name, TrainingMode mode, int ranks) {
    const testing::TemporaryFolder folder;
    const auto data = testing::tiny_data(find_recipe(name), folder, 40);
    const auto train_one = [&](int) {
      Recipe recipe = find_recipe(name);
      const RecipeOptions options{.trainer = {.mode = mode, .data_parallel = {.replicas = 1}},
                                  .epochs = 1,
                                  .batch_size = 100,
                                  .data_folder = data};
      int result = 0;
      recipe.make_optimizer = [&, make = recipe.make_optimizer](const Trained& trained,
                                                                double rate) {
        auto optimizer = make(trained, rate);
        result = is_sharded<optim::SGD, optim::Adam, optim::AdamW>(*optimizer) ? 1 : 0;
        return optimizer;
      };
      (void)train(recipe, options, init_process_group(on_cpu()), [](const auto&) {});
      return result;
    };
    return spawn(ranks, train_one, {.threads = 1, .prefix = false});
  };
  for (const Recipe& recipe : all_recipes()) {
    EXPECT_EQ(sharded(recipe.name, TrainingMode::single, 1), std::vector{0}) << recipe.name;
    EXPECT_EQ(sharded(recipe.name, TrainingMode::data_parallel, 1), std::vector{0}) << recipe.name;
    const int worthwhile = recipe.name == "linear" || recipe.name == "mlp" ? 0 : 1;
    EXPECT_EQ(sharded(recipe.name, TrainingMode::distributed, 2), std::vector(2, worthwhile))
        << recipe.name;
  }
}

TEST(Train, RefusesToCompareTheRanksOfASingleNet) {
  for (const TrainingMode mode : {TrainingMode::single, TrainingMode::data_parallel}) {
    EXPECT_THAT([&] { train_with(mode, 1, "linear", {.trainer = {.check_in_sync = 1}}); },
                ThrowsMessage<RankFailed>(HasSubstr("training has one net")));
  }
}

TEST(Train, RefusesSingleWithTwoRanks) {
  EXPECT_THAT(
      [] {
        spawn(2,
              [](int) {
                const auto group = init_process_group(on_cpu());
                (void)train(linear_recipe(), {.trainer = {.mode = TrainingMode::single}}, group,
                            [](const auto&) {});
              },
              {.threads = 1, .prefix = false});
      },
      ThrowsMessage<RankFailed>(HasSubstr("training in mode single takes one rank")));
}

TEST(Train, RecordsSpansOnlyIfATraceOrAReportNeedsThem) {
  const testing::TemporaryFolder folder;
  const RecipeOptions plain{.epochs = 1, .on_step = [](const RunSteps&, const StepSummary&) {
                              if (SpanRecorder::active()) throw std::runtime_error("it records");
                            }};
  EXPECT_NO_THROW(train_with(1, "linear", plain));
  RecipeOptions traced = plain;
  traced.trace_file = folder.path() / "trace.json";
  EXPECT_ANY_THROW(train_with(1, "linear", traced));
  RecipeOptions reported = plain;
  reported.on_course = [](const TrainResult&, const std::vector<RankCourse>&) {};
  EXPECT_ANY_THROW(train_with(1, "linear", reported));
}

// 5,000 samples on each rank, 313 steps of 16 in an epoch.
TEST(Train, GivesTheCourseOfEachRank) {
  const RecipeOptions options{
      .epochs = 2,
      .batch_size = 16,
      .on_course = [](const TrainResult& result, const std::vector<RankCourse>& ranks) {
        Error wrong("the course is wrong");
        if (result.ranks != 2 || ranks.size() != 2) throw wrong;
        for (const RankCourse& rank : ranks) {
          double in_spans = 0;
          for (const auto& [name, seconds] : rank.seconds_in) in_spans += seconds;
          if (rank.steps != 626 || rank.samples != 10'000) throw wrong;
          if (rank.points.size() != 200 || rank.points.back().step != 626) throw wrong;
          if (rank.points.back().epoch != 2 || !(rank.points.back().loss < 1)) throw wrong;
          if (!(in_spans > 0 && in_spans < rank.seconds)) throw wrong;
          const double waited = rank.seconds_waited_in_flight;
          if (!(waited > 0 && waited <= rank.seconds_in_flight)) throw wrong;
          if (waited > rank.seconds_in.at("wait")) throw wrong;
        }
        throw Error("the course is right");
      }};
  EXPECT_THAT([&] { train_with(2, "linear", options); },
              ::testing::Throws<std::exception>(
                  ::testing::Property(&std::exception::what, HasSubstr("the course is right"))));
}

}  // namespace
}  // namespace lockstep
