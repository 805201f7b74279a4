// SPDX-License-Identifier: BSD-3-Clause
// Trainings that stop and go on: at any number of ranks, from damaged folders, with another model.
#include "lockstep/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/torch.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/comm/single_process_groups.h"
#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/standardization.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;
using testing::TemporaryFolder;

using Numbers = std::map<std::string, double>;

constexpr std::size_t kSamples = 48;
constexpr std::size_t kGlobalBatch = 12;
constexpr std::int64_t kStepsPerEpoch = 4;

Mlp new_net() {
  Mlp net;
  testing::set_weights(*net, 3);
  return net;
}

std::vector<at::Tensor> weights_of(const torch::nn::Module& net) {
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : state_dict(net)) weights.push_back(tensor.clone());
  return weights;
}

bool are_equal(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  return std::ranges::equal(left, right, [](const auto& a, const auto& b) { return a.equal(b); });
}

// A rank of a training that can stop after any step and go on. Sharded if there are several ranks.
class Training {
 public:
  Training(std::shared_ptr<ProcessGroup> group, bool shards = true)
      : group_(std::move(group)), model_(net_, group_) {
    if (shards) {
      optimizer_ = std::make_unique<optim::Adam>(model_, torch::optim::AdamOptions(1e-2));
    } else {
      optimizer_ =
          std::make_unique<torch::optim::Adam>(net_->parameters(), torch::optim::AdamOptions(1e-2));
    }
  }

  CheckpointContents contents() { return {.module = model_.ptr(), .optimizer = optimizer_.get()}; }

  void go_on_from(const CheckpointPosition& position) {
    step_ = position.step;
    sampler_.resume(position.data);
    consumed_ = static_cast<std::size_t>(position.data.samples_consumed);
  }

  void train_to(std::int64_t step) {
    while (step_ < step) {
      if (consumed_ == kSamples) {
        sampler_.set_epoch(sampler_.epoch() + 1);
        consumed_ = 0;
        fresh_ = true;
      }
      if (fresh_) sampler_.reset();
      fresh_ = false;
      const auto batch = *sampler_.next(kGlobalBatch / static_cast<std::size_t>(group_->size()));
      std::vector<at::Tensor> inputs;
      std::vector<at::Tensor> targets;
      for (const std::size_t sample : batch) {
        inputs.push_back(testing::values({6}, static_cast<double>(sample)));
        targets.push_back(testing::values({3}, static_cast<double>(sample) + 0.5));
      }
      optimizer_->zero_grad();
      at::mse_loss(model_(at::stack(inputs)), at::stack(targets)).backward();
      optimizer_->step();
      consumed_ += kGlobalBatch;
      ++step_;
    }
  }

  // Whose mean is the same bits for any number of ranks.
  void step_with_gradients_of_one() {
    optimizer_->zero_grad();
    at::mse_loss(model_(testing::values({1, 6})), testing::values({1, 3})).backward();
    for (auto& parameter : net_->parameters()) parameter.mutable_grad().fill_(1);
    optimizer_->step();
    ++step_;
  }

  CheckpointPosition position() const {
    return {.step = step_, .data = sampler_.cursor_after(static_cast<std::int64_t>(consumed_))};
  }
  std::vector<at::Tensor> weights() const { return weights_of(*net_); }

 private:
  std::shared_ptr<ProcessGroup> group_;
  Mlp net_ = new_net();
  DistributedDataParallel<Mlp> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  DistributedSampler sampler_{kSamples, *group_, {.seed = 5}};
  std::int64_t step_ = 0;
  std::size_t consumed_ = 0;
  bool fresh_ = true;
};

// Trains to `first`, saves, stops, goes on in new objects with another number of ranks to `last`.
std::vector<at::Tensor> interrupted(int ranks_before, int ranks_after, bool shards,
                                    std::int64_t first, std::int64_t last) {
  const TemporaryFolder folder;
  run_rank_threads(ranks_before, [&](std::shared_ptr<ProcessGroup> group) {
    Training training(group, shards);
    CheckpointFolder checkpoints(folder.path(), group);
    training.train_to(first);
    checkpoints.save(training.contents(), training.position());
    training.train_to(first + 1);  // what is saved is a copy
    checkpoints.wait();
  });
  std::vector<at::Tensor> weights;
  run_rank_threads(ranks_after, [&](std::shared_ptr<ProcessGroup> group) {
    Training training(group, shards);
    CheckpointFolder checkpoints(folder.path(), group);
    const auto position = checkpoints.load(training.contents());
    ASSERT_TRUE(position);
    EXPECT_EQ(position->step, first);
    training.go_on_from(*position);
    training.train_to(last);
    if (group->rank() == 0) weights = training.weights();
  });
  return weights;
}

std::vector<at::Tensor> uninterrupted(int ranks, bool shards, std::int64_t last) {
  std::vector<at::Tensor> weights;
  run_rank_threads(ranks, [&](std::shared_ptr<ProcessGroup> group) {
    Training training(group, shards);
    training.train_to(last);
    if (group->rank() == 0) weights = training.weights();
  });
  return weights;
}

TEST(CheckpointFolder, AResumedTrainingEqualsAnUninterruptedOneAndNotAColdOne) {
  constexpr std::int64_t kStop = kStepsPerEpoch + 2;  // in the middle of the second epoch
  constexpr std::int64_t kEnd = 3 * kStepsPerEpoch;
  for (const int ranks : {1, 2, 3}) {
    for (const bool shards : {false, true}) {
      const auto whole = uninterrupted(ranks, shards, kEnd);
      const auto resumed = interrupted(ranks, ranks, shards, kStop, kEnd);
      EXPECT_TRUE(are_equal(resumed, whole)) << ranks << " ranks, sharded: " << shards;
      EXPECT_FALSE(are_equal(uninterrupted(ranks, shards, kEnd - kStop), whole));
    }
  }
}

TEST(CheckpointFolder, GoesOnAtAnotherNumberOfRanks) {
  constexpr std::int64_t kStop = kStepsPerEpoch + 1;
  constexpr std::int64_t kEnd = 3 * kStepsPerEpoch;
  const auto whole = uninterrupted(1, true, kEnd);
  for (const auto& [before, after] : {std::pair{1, 3}, {3, 1}, {2, 3}}) {
    const auto resumed = interrupted(before, after, true, kStop, kEnd);
    ASSERT_EQ(resumed.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_TRUE(at::allclose(resumed[i], whole[i], 1e-4, 1e-5)) << before << ", " << after;
    }
  }
}

at::Tensor random_state() {
  return at::globalContext().defaultGenerator(at::Device(at::kCPU)).get_state();
}

TEST(CheckpointFolder, IfOneRankCannotLoadNothingChangesOnAnyRank) {
  for (const bool shards : {false, true}) {
    const TemporaryFolder folder;
    run_rank_threads(2, [&](std::shared_ptr<ProcessGroup> group) {
      Training training(group, shards);
      training.train_to(2);
      GradScaler scaler({.init_scale = 1024});
      Numbers scheduler{{"base", 0.5}};
      CheckpointContents contents = training.contents();
      contents.scaler = &scaler;
      contents.scheduler = &scheduler;
      CheckpointFolder(folder.path(), group).save(contents, training.position());
    });
    at::rand({3});
    std::vector<at::Tensor> weights;
    run_rank_threads(2, [&](std::shared_ptr<ProcessGroup> group) {
      Training training(group, shards);
      training.train_to(3);
      GradScaler scaler({.init_scale = 2});
      CheckpointContents contents = training.contents();
      contents.scaler = &scaler;
      Numbers scheduler{{"base", 0.25}, {"scale", 3}};
      contents.scheduler = &scheduler;
      if (group->rank() == 1) contents.tensors = {{"mean", at::zeros({1})}};
      const at::Tensor random = random_state();
      CheckpointFolder checkpoints(folder.path(), group);
      EXPECT_THAT(message_of<CheckpointError>([&] { checkpoints.load(contents); }),
                  HasSubstr("\"mean\" is missing"));
      EXPECT_EQ(scaler.get_scale(), 2);
      EXPECT_EQ(scheduler, (Numbers{{"base", 0.25}, {"scale", 3}}));
      EXPECT_TRUE(random_state().equal(random));
      training.train_to(kStepsPerEpoch + 2);
      if (group->rank() == 0) weights = training.weights();
    });
    EXPECT_TRUE(are_equal(weights, uninterrupted(2, shards, kStepsPerEpoch + 2))) << shards;
  }
}

std::string bytes_of_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> names_in(const fs::path& safetensors) {
  std::vector<std::string> names;
  for (const auto& entry : read_safetensors(safetensors).tensors) names.push_back(entry.name);
  return names;
}

TEST(CheckpointFolder, FilesDoNotDependOnTheNumberOfRanks) {
  const auto files_of = [](int ranks) {
    const TemporaryFolder folder;
    run_rank_threads(ranks, [&](std::shared_ptr<ProcessGroup> group) {
      Training training(group);
      CheckpointFolder checkpoints(folder.path(), group);
      training.step_with_gradients_of_one();
      checkpoints.save(training.contents(), training.position());
      checkpoints.wait();
    });
    const fs::path latest = folder.path() / "latest";
    EXPECT_THAT(names_in(latest / "optimizer.safetensors"),
                IsSupersetOf({"state.0.exp_avg", "state.0.exp_avg_sq", "state.0.step"}));
    return std::pair{bytes_of_file(latest / "model.safetensors"),
                     bytes_of_file(latest / "optimizer.safetensors")};
  };
  const auto of_one = files_of(1);
  EXPECT_GT(of_one.first.size(), 200u);
  EXPECT_GT(of_one.second.size(), 2 * of_one.first.size());
  for (const int ranks : {2, 3}) EXPECT_EQ(files_of(ranks), of_one) << ranks;
}

class CheckpointFolderAlone : public ::testing::Test {
 protected:
  // In the order of the steps.
  void save(const std::vector<std::int64_t>& steps) {
    CheckpointFolder checkpoints(folder_.path(), group_, {.keep_last = 9});
    Training training(group_);
    for (const std::int64_t step : steps) {
      training.train_to(step);
      checkpoints.save(training.contents(), training.position());
    }
  }

  CheckpointFolderOptions logged() {
    return {.log = [this](const std::string& line) { lines_.push_back(line); }};
  }
  fs::path file(const std::string& step, const std::string& name) const {
    return folder_.path() / ("step-00000000000" + step) / name;
  }

  const TemporaryFolder folder_;
  const std::shared_ptr<ProcessGroup> group_ = make_self_group();
  std::vector<std::string> lines_;
};

TEST_F(CheckpointFolderAlone, TheNewestThatIsNotDamagedIsLoadedAndAMessageSaysWhy) {
  save({1, 2, 3});
  fs::resize_file(file("3", "model.safetensors"), 10);
  fs::remove(file("2", "manifest.json"));
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path(), group_, logged());
  EXPECT_EQ(checkpoints.load(training.contents())->step, 1);
  EXPECT_THAT(lines_, ElementsAre(AllOf(HasSubstr("step-000000000003 is not used"),
                                        HasSubstr("model.safetensors has 10 bytes instead of")),
                                  AllOf(HasSubstr("step-000000000002 is not used"),
                                        HasSubstr("manifest.json")),
                                  HasSubstr("going on from")));
  EXPECT_THAT(lines_.back(), HasSubstr("step-000000000001, saved at step 1"));
}

TEST_F(CheckpointFolderAlone, RefusesAFolderOfDamagedCheckpoints) {
  save({1, 2});
  for (const char* step : {"1", "2"}) fs::resize_file(file(step, "random.safetensors"), 10);
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path(), group_);
  EXPECT_THAT(message_of<CheckpointError>([&] { checkpoints.load(training.contents()); }),
              HasSubstr("all 2 checkpoints are damaged"));
}

TEST_F(CheckpointFolderAlone, AnotherModelIsRefusedWithAllDifferencesAndNothingChanges) {
  save({2});
  torch::nn::Sequential other(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Linear(8, 3));
  optim::Adam adam(other->parameters(), torch::optim::AdamOptions(1e-2));
  const auto before = weights_of(*other);
  CheckpointFolder checkpoints(folder_.path(), group_);
  const std::string message = message_of<CheckpointError>(
      [&] { checkpoints.load({.module = other.ptr(), .optimizer = &adam}); });
  EXPECT_THAT(message, AllOf(HasSubstr("step-000000000002 cannot be loaded"),
                             HasSubstr("\"0.weight\" is missing"), HasSubstr("is unexpected")));
  EXPECT_TRUE(are_equal(weights_of(*other), before));
}

TEST_F(CheckpointFolderAlone, ParametersInAnotherOrderAreRefusedAndNothingChanges) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  const auto adam_of = [&](bool reversed) {
    auto parameters = net->parameters();
    if (reversed) std::ranges::reverse(parameters);
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2));
  };
  {
    const auto adam = adam_of(false);
    net->forward(at::ones({2, 4})).sum().backward();
    adam->step();
    CheckpointFolder(folder_.path(), group_)
        .save({.module = net.ptr(), .optimizer = adam.get()}, {.step = 1});
  }
  const auto adam = adam_of(true);
  at::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.fill_(7);
  CheckpointFolder checkpoints(folder_.path(), group_);
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { checkpoints.load({.module = net.ptr(), .optimizer = adam.get()}); }),
              HasSubstr("parameter 0 of the optimizer is \"1.bias\", and was \"0.weight\""));
  EXPECT_TRUE(net->parameters()[0].equal(at::full({4, 4}, 7)));
}

TEST_F(CheckpointFolderAlone, SavingBesideAnEarlierTrainingNeedsALoad) {
  save({1});
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path(), group_);
  const auto save_now = [&] { checkpoints.save(training.contents(), training.position()); };
  EXPECT_THAT(message_of<UsageError>(save_now),
              HasSubstr("the newest of which is step-000000000001; load it first"));
  EXPECT_TRUE(checkpoints.load(training.contents()));
  save_now();
}

TEST_F(CheckpointFolderAlone, AnEmptyFolderHasNothingToLoad) {
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path() / "new", group_);
  EXPECT_FALSE(checkpoints.load(training.contents()));
}

TEST_F(CheckpointFolderAlone, KeepsScalerRandomNumbersTensorsNotesAndScore) {
  const at::Tensor mean = at::rand({3});
  const at::Tensor saved_mean = mean.clone();
  GradScaler scaler({.init_scale = 1024});
  Mlp net = new_net();
  {
    CheckpointFolder checkpoints(folder_.path(), group_);
    torch::manual_seed(5);
    at::rand({3});
    checkpoints.save({.module = net.ptr(), .scaler = &scaler, .tensors = {{"mean", mean}}},
                     {.step = 4, .score = 0.75, .notes = {{"best", "0.8"}}});
  }
  const at::Tensor next = at::rand({4});
  mean.zero_();
  GradScaler fresh;
  torch::manual_seed(1);
  CheckpointFolder checkpoints(folder_.path(), group_);
  const auto position =
      checkpoints.load({.module = net.ptr(), .scaler = &fresh, .tensors = {{"mean", mean}}});
  EXPECT_EQ(position->score, 0.75);
  EXPECT_EQ(position->notes.at("best"), "0.8");
  EXPECT_EQ(fresh.get_scale(), 1024);
  EXPECT_TRUE(mean.equal(saved_mean));
  EXPECT_TRUE(at::rand({4}).equal(next));
  EXPECT_THAT(message_of<CheckpointError>([&] { checkpoints.load({.module = net.ptr()}); }),
              HasSubstr("it has state of a scaler, and the program loads none"));
}

TEST(CheckpointFolder, KeepsEveryBitOfASchedulersNumbers) {
  const Numbers numbers{{"initial_lr.0", 0.1}, {"third", 1.0 / 3},       {"whole", 24},
                        {"large", 1.7e308},    {"smallest", 5e-324},     {"minus zero", -0.0},
                        {"2^53", 0x1p53},      {"a \"b\" \xc3\xa9", 0.3}};
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    run_rank_threads(ranks, [&](std::shared_ptr<ProcessGroup> group) {
      Mlp net = new_net();
      Numbers scheduler = numbers;
      CheckpointFolder checkpoints(folder.path(), group);
      checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
      scheduler = {{"third", 4}, {"of another kind", 5}};
      checkpoints.load({.module = net.ptr(), .scheduler = &scheduler});
      EXPECT_EQ(scheduler, numbers);
      EXPECT_TRUE(std::signbit(scheduler.at("minus zero")));
    });
  }
}

TEST_F(CheckpointFolderAlone, ASchedulersNumbersMustBeFiniteAndTheirNamesUtf8) {
  Mlp net = new_net();
  CheckpointFolder checkpoints(folder_.path(), group_);
  const auto save = [&](Numbers scheduler) {
    checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
    checkpoints.wait();
  };
  EXPECT_THAT(message_of<UsageError>([&] {
                save({{"base", 1}, {"minimum", std::nan("")}});
              }),
              HasSubstr("cannot keep \"minimum\" of the scheduler, which is nan on rank 0 of 1"));
  EXPECT_THAT(message_of<UsageError>([&] {
                save({{"base", -HUGE_VAL}});
              }),
              HasSubstr("which is -inf"));
  EXPECT_THAT(message_of<UsageError>([&] {
                save({{"\xff", 1}});
              }),
              HasSubstr("the names of a scheduler's numbers must be UTF-8"));
  EXPECT_THAT(checkpoint_names(folder_.path()), ::testing::IsEmpty());
  save({{"base", 1}});
  EXPECT_THAT(checkpoint_names(folder_.path()), ElementsAre("step-000000000001"));
}

TEST_F(CheckpointFolderAlone, ASchedulerIsLoadedIfAndOnlyIfOneWasSaved) {
  Mlp net = new_net();
  Numbers scheduler{{"base", 1}};
  CheckpointFolder checkpoints(folder_.path(), group_);
  checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
  EXPECT_THAT(message_of<CheckpointError>([&] { checkpoints.load({.module = net.ptr()}); }),
              HasSubstr("it has state of a scheduler, and the program loads none"));
  checkpoints.save({.module = net.ptr()}, {.step = 2});
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { checkpoints.load({.module = net.ptr(), .scheduler = &scheduler}); }),
              HasSubstr("it has no state of a scheduler, and the program loads one"));
  EXPECT_EQ(scheduler, (Numbers{{"base", 1}}));
}

// With this field in the manifest, or without it if it is null.
void rewrite_manifest(const fs::path& checkpoint, const nlohmann::json& scheduler) {
  nlohmann::json manifest = read_manifest(checkpoint);
  manifest.erase("scheduler");
  if (!scheduler.is_null()) manifest["scheduler"] = scheduler;
  const std::string text = manifest.dump();
  std::ofstream(checkpoint / "manifest.json") << text;
  std::ofstream(checkpoint / "manifest.json.sha256")
      << sha256_of(std::as_bytes(std::span(text))) << "  manifest.json\n";
}

TEST_F(CheckpointFolderAlone, ASchedulersNumbersStayIfTheCheckpointIsFromBeforeThem) {
  Mlp net = new_net();
  Numbers scheduler{{"base", 1}};
  CheckpointFolder checkpoints(folder_.path(), group_);
  checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
  checkpoints.wait();
  scheduler = {{"base", 2}};
  rewrite_manifest(file("1", ""), {{"base", "a word"}});
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { checkpoints.load({.module = net.ptr(), .scheduler = &scheduler}); }),
              HasSubstr("its manifest is incomplete"));
  rewrite_manifest(file("1", ""), {});
  EXPECT_TRUE(checkpoints.load({.module = net.ptr(), .scheduler = &scheduler}));
  EXPECT_EQ(scheduler, (Numbers{{"base", 2}}));
  EXPECT_TRUE(checkpoints.load({.module = net.ptr()}));
}

// Rank 0 cannot write the checkpoint before it has rank 1's part, and rank 1 copies its random
// numbers only after rank 0's save() has returned.
TEST(CheckpointFolder, SaveReturnsBeforeTheCheckpointIsWritten) {
  const TemporaryFolder folder;
  testing::run_ranks(2, [&](testing::Rank& rank) {
    const auto group = init_process_group({.backend = "shm",
                                           .init_method = rank.rendezvous_url(),
                                           .rank = rank.rank(),
                                           .world_size = rank.size(),
                                           .device = at::kCPU});
    torch::nn::Linear net(4, 4);
    CheckpointFolder checkpoints(folder.path(), group);
    const auto save = [&] { checkpoints.save({.module = net.ptr()}, {.step = 1}); };
    if (rank.rank() == 0) {
      save();
      EXPECT_THAT(checkpoint_names(folder.path()), ::testing::IsEmpty());
      rank.cue("save has returned");
    } else {
      at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCPU));
      std::unique_lock lock(generator.mutex());
      std::thread saving(save);
      rank.await(0, "save has returned");
      lock.unlock();
      saving.join();
    }
    checkpoints.wait();
    EXPECT_THAT(checkpoint_names(folder.path()), ElementsAre("step-000000000001"));
  });
}

TEST(CheckpointFolder, LoadTakesAtMostTwiceTheMemoryOfTheFiles) {
  constexpr std::int64_t kFiles = 64 << 20;
  const TemporaryFolder folder;
  const auto net_of_64_mebibytes = [] {
    return torch::nn::Linear(torch::nn::LinearOptions(4096, 4096).bias(false));
  };
  testing::run_ranks(1, [&](testing::Rank&) {
    const auto net = net_of_64_mebibytes();
    CheckpointFolder(folder.path(), make_self_group()).save({.module = net.ptr()}, {.step = 1});
  });
  const auto outcomes = testing::run_ranks(1, [&](testing::Rank& rank) {
    const auto net = net_of_64_mebibytes();
    CheckpointFolder checkpoints(folder.path(), make_self_group());
    if (!testing::limit_memory(2 * kFiles + (8 << 20))) return rank.report("skipped");
    EXPECT_TRUE(checkpoints.load({.module = net.ptr()}));
  });
  if (outcomes[0].result == "skipped") GTEST_SKIP() << "a sanitizer has its own memory";
}

// Training finds the statistics over its ranks; inference has only the checkpoint.
TEST(CheckpointFolder, AStandardizationIsTheSameAtInference) {
  torch::manual_seed(3);
  const at::Tensor rows = torch::randn({60, 5}, at::kDouble) * 100 + 7;
  const TemporaryFolder folder;
  at::Tensor trained_on;
  run_rank_threads(3, [&](std::shared_ptr<ProcessGroup> group) {
    const FeatureStandardization measured = measure_feature_standardization(rows, *group);
    Mlp net = new_net();
    CheckpointFolder(folder.path(), group)
        .save({.module = net.ptr(),
               .tensors = {{"mean", measured.mean}, {"deviation", measured.deviation}}},
              {.step = 1});
    if (group->rank() == 0) trained_on = measured.apply(rows);
  });
  Mlp net = new_net();
  const FeatureStandardization loaded{at::zeros({5}, at::kDouble), at::ones({5}, at::kDouble)};
  CheckpointFolder(folder.path(), make_self_group())
      .load({.module = net.ptr(),
             .tensors = {{"mean", loaded.mean}, {"deviation", loaded.deviation}}});
  EXPECT_TRUE(loaded.apply(rows).equal(trained_on));
  // Without a training's objects, as docs/checkpoints.md has it.
  const auto added = read_safetensors(folder.path() / "latest" / "tensors.safetensors").tensors;
  const auto tensor = [&](const std::string& name) {
    return std::ranges::find(added, name, &NamedTensor::name)->tensor;
  };
  const FeatureStandardization read{tensor("mean"), tensor("deviation")};
  EXPECT_TRUE(read.apply(rows).equal(trained_on));
}

TEST(CheckpointFolder, AFullDiskIsToldAndTrainingGoesOn) {
  const auto outcomes = testing::run_ranks(1, [&](testing::Rank& rank) {
    const TemporaryFolder folder;
    if (!testing::mount_disk(folder.path(), 256 << 10)) return rank.report("skipped");
    const auto group = make_self_group();
    std::vector<std::string> lines;
    torch::nn::Sequential net(torch::nn::Linear(4, 4));
    CheckpointFolder checkpoints(folder.path(), group,
                                 {.log = [&](const std::string& line) { lines.push_back(line); }});
    checkpoints.save({.module = net.ptr()}, {.step = 1});
    checkpoints.wait();
    torch::nn::Sequential large(torch::nn::Linear(400, 400));
    checkpoints.save({.module = large.ptr()}, {.step = 2});
    EXPECT_THAT(message_of<BackendError>([&] { checkpoints.wait(); }),
                HasSubstr("No space left on device"));
    checkpoints.save({.module = large.ptr()}, {.step = 3});
    checkpoints.save({.module = net.ptr()}, {.step = 4});
    checkpoints.wait();
    EXPECT_THAT(lines, ElementsAre(AllOf(HasSubstr("a checkpoint was not written, and older"),
                                         HasSubstr("No space left on device"))));
    EXPECT_THAT(checkpoint_names(folder.path()),
                ElementsAre("step-000000000004", "step-000000000001"));
  });
  if (outcomes[0].result == "skipped") {
    testing::skip_or_fail("a mount needs a namespace of its own");
  }
}

TEST(CheckpointFolder, EveryRankHearsOfRankZerosFolder) {
  const TemporaryFolder folder;
  folder.write("file", "text");
  run_rank_threads(2, [&](std::shared_ptr<ProcessGroup> group) {
    EXPECT_THAT(message_of<UsageError>([&] { CheckpointFolder(folder.path() / "file", group); }),
                HasSubstr("cannot write checkpoints into"));
    EXPECT_THAT(
        message_of<UsageError>([&] { CheckpointFolder(folder.path(), group, {.keep_last = 0}); }),
        HasSubstr("keep at least the last one"));
  });
}

}  // namespace
}  // namespace lockstep
