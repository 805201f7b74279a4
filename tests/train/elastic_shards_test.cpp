// SPDX-License-Identifier: BSD-3-Clause
// Elastic jobs whose optimizer is sharded. What a member has of its state must outlive it.
#include <string>

#include "support/program.h"
#include "support/temporary_folder.h"
#include "tests/train/elastic_jobs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using testing::Ended;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kFromMemory = ", with the optimizer's state from the memory that they shared";

class ElasticShards : public testing::ElasticJobs {
 protected:
  static std::string folder_in(const testing::TemporaryFolder& folder) {
    return "checkpoints=" + (folder.path() / "checkpoints").string();
  }
};

TEST_F(ElasticShards, AreRecoveredFromMemoryThatRanksShare) {
  for (const char* const optimizer : {"sharded=sgd", "sharded=adam", "sharded=adamw"}) {
    const std::string text = expect_undisturbed(2, {"model=mlp", optimizer}, {"die=0:loss:4"});
    EXPECT_THAT(text, HasSubstr(fmt::format("goes on after step 3{}", kFromMemory)));
    EXPECT_THAT(text, HasSubstr("with one copy of the weights"));
    expect_undisturbed(3, {"model=cnn", optimizer}, {"die=2:update:6"});
    expect_undisturbed(4, {"model=mlp", optimizer}, {"die=1:updated:5"});
  }
  expect_undisturbed(3, {"model=cnn", "sharded=adam"}, {"die=0:after:10"});
}

// The survivors complete the update.
TEST_F(ElasticShards, AreRecoveredIfTheirRankDiesInTheUpdate) {
  const Words optimizers{"sharded=sgd", "sharded=adam", "sharded=adamw"};
  int number = 0;
  for (const int microseconds : {1, 20, 40, 60, 90, 130, 200}) {
    const int ranks = 2 + number % 3;
    const auto death = fmt::format("die={}:step:{}:{}", number % ranks, 2 + number, microseconds);
    expect_undisturbed(ranks, {"model=wide", optimizers[number % optimizers.size()]}, {death});
    ++number;
  }
}

// Nobody counts the step, which is complete.
TEST_F(ElasticShards, AreCountedWithTheStepThatTheyContain) {
  const std::string text =
      expect_undisturbed(2, {"model=mlp", "sharded=adam"}, {"check_in_sync=1", "die=1:updated:2"});
  EXPECT_THAT(text, HasSubstr("goes on after step 2,"));
  EXPECT_THAT(text, HasSubstr("epoch 0 had 5 steps"));
}

TEST_F(ElasticShards, LoseTwoRanksAtOnceAndThenAnother) {
  expect_undisturbed(4, {"model=mlp", "sharded=adam"},
                     {"die=0:update:3", "die=2:update:3", "die=1:loss:9"});
}

TEST_F(ElasticShards, AreGivenToReplacements) {
  const Words model{"model=cnn", "sharded=adam"};
  const std::string text = expect_undisturbed(2, model, {"die=0:loss:3", "wait=7:2"});
  EXPECT_THAT(text, ContainsRegex("2 ranks go on after step [3-7]; rank 1 has got the state of "
                                  "rank 0"));
  expect_undisturbed(2, model, {"die=0:loss:2", "wait=4:2", "die=1:after:6", "wait=9:4"});
  // It makes some 40 calls in all.
  for (const int call : {4, 20, 30}) {
    expect_undisturbed(2, model, {"die=0:loss:3", fmt::format("die=2:call:{}", call), "wait=9:2"});
  }
}

// The first is lost before the weights move to memory of all ranks, the others meanwhile.
TEST_F(ElasticShards, OutliveARankThatIsLostWhileTheyAreDividedAnew) {
  const Words model{"model=mlp", "sharded=adam"};
  expect_undisturbed(3, model, {"die=2:loss:4", "die=0:schedule:3"});
  for (const int call : {1, 2, 4, 6}) {
    expect_undisturbed(4, model, {"die=3:loss:4", fmt::format("die=0:adopting:{}", call)});
  }
}

TEST_F(ElasticShards, FollowARequestForMoreRanksOrFewer) {
  const Words model{"model=cnn", "sharded=adamw"};
  std::string text = expect_undisturbed(1, model, {"resize=2:3", "wait=6:1"}, /*most=*/3);
  EXPECT_THAT(text, HasSubstr(" has got the state of rank 0"));
  text = expect_undisturbed(3, model, {"resize=3:2", "wait=6:1"});
  EXPECT_THAT(text, HasSubstr("generation 1: 2 ranks go on after step "));
  EXPECT_THAT(text, Not(HasSubstr("was lost")));
}

TEST_F(ElasticShards, ComeFromACheckpointIfRanksShareNoMemory) {
  const testing::TemporaryFolder folder;
  const Words model{"model=mlp", "sharded=adam", "epochs=2"};
  const std::string text = expect_undisturbed(
      3, model, {"backend=gloo", "every=4", folder_in(folder), "die=1:update:7"});
  // That of step 5 may not have been written yet.
  EXPECT_THAT(text, ContainsRegex("2 ranks go on after step 6, from the checkpoint of step [45]: "
                                  "rank 1 had a share of the optimizer's state"));
}

// There is one of the start.
TEST_F(ElasticShards, ComeFromTheFirstCheckpoint) {
  const testing::TemporaryFolder folder;
  const Words model{"model=mlp", "sharded=adam", "epochs=1"};
  const std::string text =
      expect_undisturbed(2, model, {"backend=gloo", "every=0", folder_in(folder), "die=0:loss:3"});
  EXPECT_THAT(text, HasSubstr("after step 2, from the checkpoint of step 0: rank 0 had a share"));
}

TEST_F(ElasticShards, AreGatheredForAnOrderlyChangeWithoutSharedMemory) {
  const testing::TemporaryFolder folder;
  const std::string text =
      expect_undisturbed(2, {"model=mlp", "sharded=adam"},
                         {"backend=gloo", "every=0", folder_in(folder), "resize=2:3", "wait=6:1"},
                         /*most=*/3);
  EXPECT_THAT(text, HasSubstr("rank 2 has got the state of rank 0"));
  EXPECT_THAT(text, Not(HasSubstr("from the checkpoint")));
}

TEST_F(ElasticShards, OfAJobThatBeginsWithOneRankComeFromTheFirstCheckpoint) {
  const testing::TemporaryFolder folder;
  const std::string text = expect_undisturbed(
      1, {"model=mlp", "sharded=adam", "epochs=1"},
      {"backend=gloo", "every=0", folder_in(folder), "resize=1:2", "wait=2:1", "die=1:loss:4"},
      /*most=*/2);
  EXPECT_THAT(text, HasSubstr("from the checkpoint of step 0: rank 1 had a share"));
}

TEST_F(ElasticShards, OfAJobThatBeginsWithOneRankNeedACheckpointToo) {
  const Ended ended = run(1, "1:2", {"sharded=adam", "backend=gloo"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("set .checkpoints, from which it is then taken"));
}

TEST_F(ElasticShards, NeedACheckpointIfRanksShareNoMemory) {
  const Ended ended = run(2, "1:2", {"sharded=adam", "backend=gloo"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("its ranks share no memory (backend gloo)"),
                               HasSubstr("set .checkpoints, from which it is then taken")));
}

}  // namespace
}  // namespace lockstep
