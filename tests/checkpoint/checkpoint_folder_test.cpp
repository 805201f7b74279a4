// SPDX-License-Identifier: BSD-3-Clause
// What a folder of checkpoints keeps, and what becomes of it on a full disk.
#include "lockstep/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/checkpoint_store.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/data/standardization.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::run_rank_threads;
using testing::TemporaryFolder;

using Numbers = std::map<std::string, double>;

class CheckpointFolderAlone : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const std::shared_ptr<ProcessGroup> group_ = make_self_group();
};

TEST_F(CheckpointFolderAlone, KeepsScalerRandomNumbersTensorsNotesAndScore) {
  const at::Tensor mean = at::rand({3});
  const at::Tensor saved_mean = mean.clone();
  GradScaler scaler({.init_scale = 1024});
  Mlp net;
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
              HasSubstr("it has state of a scaler, but the program loads none"));
}

// With a module and one of two tensors, without the optimizer that the checkpoints have.
TEST(CheckpointFolder, LoadsTheBestWeightsAlone) {
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    run_rank_threads(ranks, [&](std::shared_ptr<ProcessGroup> group) {
      Mlp net;
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      const at::Tensor mean = torch::zeros({2});
      const at::Tensor other = torch::zeros({2});
      CheckpointFolder checkpoints(folder.path(), group, {.keep_last = 1, .keep_best = 1});
      EXPECT_FALSE(checkpoints.load_best(net.ptr()));
      const CheckpointContents contents{.module = net.ptr(),
                                        .optimizer = &optimizer,
                                        .tensors = {{"mean", mean}, {"other", other}}};
      const auto save = [&](std::int64_t step, double score) {
        testing::set_weights(*net, static_cast<double>(step));
        mean.fill_(step);
        other.fill_(step);
        checkpoints.save(contents, {.step = step, .score = score});
      };
      for (const auto& [step, score] :
           std::vector<std::pair<std::int64_t, double>>{{1, 0.2}, {2, 0.7}, {3, 0.5}})
        save(step, score);
      EXPECT_EQ(checkpoints.load_best(net.ptr(), {{"mean", mean}})->step, 2);
      Mlp expected;
      testing::set_weights(*expected, 2);
      EXPECT_TRUE(net->hidden->weight.equal(expected->hidden->weight));
      EXPECT_TRUE(mean.equal(torch::full({2}, 2.0F)));
      EXPECT_TRUE(other.equal(torch::full({2}, 3.0F)));

      const at::Tensor before = net->hidden->weight.clone();
      EXPECT_THAT(message_of<CheckpointError>([&] {
                    checkpoints.load_best(net.ptr(), {{"absent", mean}});
                  }),
                  HasSubstr("\"absent\" is missing"));
      EXPECT_TRUE(net->hidden->weight.equal(before));
    });
  }
}

TEST_F(CheckpointFolderAlone, TheNextBestIsUsedIfTheBestIsDamaged) {
  Mlp net;
  std::vector<std::string> lines;
  CheckpointFolder checkpoints(
      folder_.path(), group_,
      {.keep_last = 3, .log = [&](const std::string& line) { lines.push_back(line); }});
  for (const auto& [step, score] :
       std::vector<std::pair<std::int64_t, double>>{{1, 0.7}, {2, 0.9}, {3, 0.5}}) {
    checkpoints.save({.module = net.ptr()}, {.step = step, .score = score});
  }
  checkpoints.wait();
  fs::remove(folder_.path() / "step-000000000002" / "model.safetensors");
  EXPECT_EQ(checkpoints.load_best(net.ptr())->step, 1);
  EXPECT_THAT(lines, ::testing::Contains(HasSubstr("step-000000000002 is not used: ")));
}

TEST(CheckpointFolder, KeepsEveryBitOfASchedulersNumbers) {
  const Numbers numbers{{"initial_lr.0", 0.1}, {"third", 1.0 / 3},       {"whole", 24},
                        {"large", 1.7e308},    {"smallest", 5e-324},     {"minus zero", -0.0},
                        {"2^53", 0x1p53},      {"a \"b\" \xc3\xa9", 0.3}};
  for (const int ranks : {1, 2}) {
    const TemporaryFolder folder;
    run_rank_threads(ranks, [&](std::shared_ptr<ProcessGroup> group) {
      Mlp net;
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
  Mlp net;
  CheckpointFolder checkpoints(folder_.path(), group_);
  const auto save = [&](Numbers scheduler) {
    checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
    checkpoints.wait();
  };
  EXPECT_THAT(
      message_of<UsageError>([&] {
        save({{"base", 1}, {"minimum", std::nan("")}});
      }),
      HasSubstr("[CheckpointFolder] rank 0 of 1: a checkpoint cannot keep \"minimum\" of the "
                "scheduler, which is nan"));
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
  Mlp net;
  Numbers scheduler{{"base", 1}};
  CheckpointFolder checkpoints(folder_.path(), group_);
  checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
  EXPECT_THAT(message_of<CheckpointError>([&] { checkpoints.load({.module = net.ptr()}); }),
              HasSubstr("it has state of a scheduler, but the program loads none"));
  checkpoints.save({.module = net.ptr()}, {.step = 2});
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { checkpoints.load({.module = net.ptr(), .scheduler = &scheduler}); }),
              HasSubstr("it has no state of a scheduler, but the program loads one"));
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
  Mlp net;
  Numbers scheduler{{"base", 1}};
  CheckpointFolder checkpoints(folder_.path(), group_);
  checkpoints.save({.module = net.ptr(), .scheduler = &scheduler}, {.step = 1});
  checkpoints.wait();
  scheduler = {{"base", 2}};
  rewrite_manifest(folder_.path() / "step-000000000001", {{"base", "a word"}});
  EXPECT_THAT(message_of<CheckpointError>(
                  [&] { checkpoints.load({.module = net.ptr(), .scheduler = &scheduler}); }),
              HasSubstr("its manifest is incomplete"));
  rewrite_manifest(folder_.path() / "step-000000000001", {});
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
    Mlp net;
    CheckpointFolder(folder.path(), group)
        .save({.module = net.ptr(),
               .tensors = {{"mean", measured.mean}, {"deviation", measured.deviation}}},
              {.step = 1});
    if (group->rank() == 0) trained_on = measured.apply(rows);
  });
  Mlp net;
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
