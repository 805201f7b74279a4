// SPDX-License-Identifier: BSD-3-Clause
// Trainings that stop and go on: at any number of ranks, from damaged folders, with another model.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
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

  void continue_from(const CheckpointPosition& position) {
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
    training.continue_from(*position);
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

TEST(ResumedTraining, AResumedTrainingEqualsAnUninterruptedOneAndNotAColdOne) {
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

TEST(ResumedTraining, GoesOnAtAnotherNumberOfRanks) {
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

TEST(ResumedTraining, IfOneRankCannotLoadNothingChangesOnAnyRank) {
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

TEST(ResumedTraining, FilesDoNotDependOnTheNumberOfRanks) {
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

class ResumedTrainingAlone : public ::testing::Test {
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

TEST_F(ResumedTrainingAlone, TheNewestThatIsNotDamagedIsLoadedAndAMessageSaysWhy) {
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
                                  HasSubstr("resuming from")));
  EXPECT_THAT(lines_.back(), HasSubstr("step-000000000001, saved at step 1"));
}

TEST_F(ResumedTrainingAlone, RefusesAFolderOfDamagedCheckpoints) {
  save({1, 2});
  for (const char* step : {"1", "2"}) fs::resize_file(file(step, "random.safetensors"), 10);
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path(), group_);
  EXPECT_THAT(
      message_of<CheckpointError>([&] { checkpoints.load(training.contents()); }),
      AllOf(HasSubstr("all 2 checkpoints are damaged; the first: " + folder_.path().string()),
            EndsWith("; restore the folder from a backup, or choose another one")));
}

TEST_F(ResumedTrainingAlone, AnotherModelIsRefusedWithAllDifferencesAndNothingChanges) {
  save({2});
  torch::nn::Sequential other(torch::nn::Linear(6, 8), torch::nn::ReLU(), torch::nn::Linear(8, 3));
  optim::Adam adam(other->parameters(), torch::optim::AdamOptions(1e-2));
  const auto before = weights_of(*other);
  CheckpointFolder checkpoints(folder_.path(), group_);
  const std::string message = message_of<CheckpointError>(
      [&] { checkpoints.load({.module = other.ptr(), .optimizer = &adam}); });
  EXPECT_THAT(message, AllOf(HasSubstr("step-000000000002 cannot be loaded"),
                             HasSubstr("\"0.weight\" is missing"), HasSubstr("is unexpected"),
                             EndsWith("; make the model, optimizer and tensors that it was saved "
                                      "from, or choose another folder")));
  EXPECT_TRUE(are_equal(weights_of(*other), before));
}

TEST_F(ResumedTrainingAlone, ParametersInAnotherOrderAreRefusedAndNothingChanges) {
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

TEST_F(ResumedTrainingAlone, SavingBesideAnEarlierTrainingNeedsALoad) {
  save({1});
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path(), group_);
  const auto save_now = [&] { checkpoints.save(training.contents(), training.position()); };
  EXPECT_THAT(message_of<UsageError>(save_now),
              HasSubstr("the newest of which is step-000000000001; load it first"));
  EXPECT_TRUE(checkpoints.load(training.contents()));
  save_now();
}

TEST_F(ResumedTrainingAlone, AnEmptyFolderHasNothingToLoad) {
  Training training(group_);
  CheckpointFolder checkpoints(folder_.path() / "new", group_);
  EXPECT_FALSE(checkpoints.load(training.contents()));
}

}  // namespace
}  // namespace lockstep
