// SPDX-License-Identifier: BSD-3-Clause
// Jobs whose members are killed where it hurts most. The state at the end must have the bits of the
// undisturbed training in one process.
#include <csignal>
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
using testing::ElasticJobs;
using testing::Ended;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Program;

// 50 samples are 5 steps of an epoch, 15 in all.
TEST_F(ElasticJobs, GoOnWithoutTheRankThatIsLostInAStep) {
  for (const char* const model : {"model=linear", "model=mlp", "model=cnn"}) {
    const std::string text = expect_undisturbed(2, {model}, {"die=0:loss:4"});
    EXPECT_THAT(text, HasSubstr("goes on after step 3"));
  }
  expect_undisturbed(3, {"model=mlp"}, {"die=2:loss:13"});
  expect_undisturbed(3, {"model=cnn"}, {"die=0:before:7"});
}

// The others have made the step that it has not made, or the other way round.
TEST_F(ElasticJobs, GoOnWithoutTheRankThatIsLostAtTheEndOfAStep) {
  const std::string text = expect_undisturbed(2, {"model=cnn"}, {"die=1:update:6"});
  EXPECT_THAT(text, HasSubstr("goes on after step 6"));
  expect_undisturbed(3, {"model=mlp"}, {"die=0:after:5"});
  expect_undisturbed(3, {"model=mlp"}, {"die=2:update:15"});
}

TEST_F(ElasticJobs, GoOnWithoutTheRankThatIsLostBetweenEpochs) {
  expect_undisturbed(2, {"model=mlp"}, {"die=0:evaluation:1"});
  expect_undisturbed(3, {"model=cnn"}, {"die=1:end:0"});
}

TEST_F(ElasticJobs, LoseTwoRanksAtOnceAndThenAnother) {
  expect_undisturbed(4, {"model=mlp"}, {"die=0:loss:3", "die=2:loss:3", "die=1:loss:9"});
}

TEST_F(ElasticJobs, BalanceTheLoadAndLoseARank) {
  expect_undisturbed(3, {"model=cnn", "slow=2", "epochs=10"}, {"die=0:loss:23"});
}

TEST_F(ElasticJobs, GiveAReplacementTheStateOfTheOthers) {
  const std::string text = expect_undisturbed(2, {"model=cnn"}, {"die=0:loss:3", "wait=7:2"});
  // How soon it comes is the machine's affair.
  EXPECT_THAT(text, ContainsRegex("2 ranks go on after step [3-7]; rank 1 has got the state of "
                                  "rank 0"));
  // The replacement trains: it is lost itself, and then replaced again.
  expect_undisturbed(3, {"model=mlp"}, {"die=2:update:3", "wait=6:2", "die=3:loss:9", "wait=11:4"});
}

// Members 0 and 1 are replaced one after another, so that nobody of the first generation is left.
TEST_F(ElasticJobs, OutliveAllTheirMembers) {
  expect_undisturbed(2, {"model=cnn"}, {"die=0:loss:2", "wait=4:2", "die=1:after:6", "wait=9:4"});
}

// Its call of this number is its last one: while it says that it can train, while it meets the
// others, and while it gets their state.
TEST_F(ElasticJobs, LoseAReplacementWhileItIsHealed) {
  for (const int call : {1, 4, 10, 20}) {
    expect_undisturbed(2, {"model=mlp"},
                       {"die=0:loss:3", fmt::format("die=2:call:{}", call), "wait=9:2"});
  }
}

// Its third call of the schedule's function is in the new group, after the state was compared.
TEST_F(ElasticJobs, LoseTheDonorWhileTheOthersMeet) {
  expect_undisturbed(3, {"model=mlp"}, {"die=2:loss:4", "die=0:schedule:3"});
}

TEST_F(ElasticJobs, WriteCheckpointsWithWhoeverIsRankZero) {
  const testing::TemporaryFolder folder;
  const Words model{"model=cnn"};
  const std::string checkpoints = "checkpoints=" + (folder.path() / "checkpoints").string();
  expect_undisturbed(3, model, {checkpoints, "die=0:loss:4", "die=1:loss:8"});
  // They include all steps.
  const Ended resumed = testing::run_to_end({ELASTIC_PROGRAM, "model=cnn", checkpoints});
  EXPECT_EQ(hash_in(resumed), undisturbed(model));
  EXPECT_THAT(resumed.out, HasSubstr("nothing is left to train"));
}

TEST_F(ElasticJobs, GetMoreRanksOnRequest) {
  const std::string text =
      expect_undisturbed(1, {"model=cnn"}, {"resize=2:3", "wait=6:1"}, /*most=*/3);
  EXPECT_THAT(text, HasSubstr(" has got the state of rank 0"));
}

TEST_F(ElasticJobs, LetTheHighestRankLeaveOnRequest) {
  const std::string text = expect_undisturbed(3, {"model=cnn"}, {"resize=3:2", "wait=6:1"});
  EXPECT_THAT(text, HasSubstr("generation 1: 2 ranks go on after step "));
  EXPECT_THAT(text, Not(HasSubstr("was lost")));
  EXPECT_THAT(text, Not(HasSubstr("failed as it left")));
}

// The checkpoint at the end of the only epoch.
TEST_F(ElasticJobs, KeepTheCheckpointDuringWhichARankIsLost) {
  const testing::TemporaryFolder folder;
  const Words model{"model=mlp", "epochs=1"};
  const std::string checkpoints = "checkpoints=" + (folder.path() / "checkpoints").string();
  const std::string text = expect_undisturbed(2, model, {checkpoints, "die=1:checkpoint:5"});
  // The callbacks before it do not run again.
  EXPECT_EQ(testing::occurrences(text, "epoch 0 had 5 steps"), 2) << text;
  const Ended resumed =
      testing::run_to_end({ELASTIC_PROGRAM, "model=mlp", "epochs=1", checkpoints});
  EXPECT_EQ(hash_in(resumed), undisturbed(model));
  EXPECT_THAT(resumed.out, HasSubstr("nothing is left to train"));
}

TEST_F(ElasticJobs, CountAStepOnceIfARankIsLostWhileTheyCompareIt) {
  const std::string text =
      expect_undisturbed(2, {"model=mlp"}, {"check_in_sync=1", "die=1:updated:2"});
  EXPECT_THAT(text, HasSubstr("goes on after step 2"));
  EXPECT_THAT(text, HasSubstr("epoch 0 had 5 steps"));
}

// The program has spawned ranks, and so many of them have returned this hash.
void expect_to_return(const Ended& ended, int ranks, const std::string& hash) {
  const std::string text = ended.out + ended.err;
  EXPECT_EQ(ended.code, 0) << text;
  EXPECT_EQ(testing::occurrences(ended.out, "\nreturned "), ranks) << text;
  EXPECT_EQ(testing::occurrences(ended.out, "\nreturned " + hash), ranks) << text;
}

TEST_F(ElasticJobs, OfSpawnReplaceARankThatIsLost) {
  for (const char* const method : {"fork", "spawn"}) {
    const Words job{ELASTIC_PROGRAM, "model=cnn", fmt::format("spawn={}:3:3", method),
                    "die=1:loss:4", "wait=7:2"};
    const Ended ended = testing::run_to_end(job);
    expect_to_return(ended, 3, undisturbed({"model=cnn"}));
    expect_deaths(job, ended.out);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("lockstep: member 1 (rank 1, pid "),
                                 HasSubstr("killed by signal 9 (SIGKILL)"),
                                 HasSubstr("lockstep: member 3 joins as rank 2 of 3")));
  }
}

TEST_F(ElasticJobs, OfSpawnOutliveTheRanksThatTheyStartWith) {
  const Words job{ELASTIC_PROGRAM, "model=mlp",           "spawn=fork:2:2", "die=0:loss:2",
                  "wait=4:2",      "die=1:after:6:throw", "wait=9:4"};
  const Ended ended = testing::run_to_end(job);
  expect_to_return(ended, 2, undisturbed({"model=mlp"}));
  expect_deaths(job, ended.out);
  EXPECT_THAT(ended.err, HasSubstr(" was lost: the data of this rank are damaged; 1 rank goes on"));
}

TEST_F(ElasticJobs, OfSpawnGrowToTheMostRanks) {
  const Words job{ELASTIC_PROGRAM, "model=mlp", "spawn=fork:1:2", "wait=6:1"};
  Words grows = job;
  grows.emplace_back("resize=2:2");
  expect_to_return(testing::run_to_end(grows), 2, undisturbed({"model=mlp"}));
  Words grows_too_much = job;
  grows_too_much.emplace_back("resize=2:3");
  const Ended ended = testing::run_to_end(grows_too_much);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("the job cannot go on without rank 0 of 1 (pid "),
                               HasSubstr("give a number from 1 to 2")));
}

// The replacements fail like the first ranks.
TEST_F(ElasticJobs, OfSpawnEndWhenAllRanksAreLost) {
  const Ended ended = testing::run_to_end(
      {ELASTIC_PROGRAM, "model=mlp", "spawn=fork:2:2", "die=0:loss:3:throw", "die=1:loss:3:throw"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("spawn(2): the job cannot go on without "));
  EXPECT_THAT(ended.err, HasSubstr(": the data of this rank are damaged\nbefore that:\n  member "));
}

TEST_F(ElasticJobs, OfSpawnEndAtAMistakeInTheOptions) {
  const Ended ended =
      testing::run_to_end({ELASTIC_PROGRAM, "model=mlp", "spawn=fork:2:2", "microbatches=0"});
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("the job cannot go on without rank "),
                               HasSubstr("without microbatches the result depends on"),
                               Not(HasSubstr(" goes on"))));
}

TEST_F(ElasticJobs, OfSpawnEndWithTheirParent) {
  Program program({ELASTIC_PROGRAM, "model=mlp", "spawn=fork:2:2", "die=1:loss:3", "wait=7:9"});
  program.wait_for("2 ranks go on after step");
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
}

// The others, which wait in the evaluation, are not lost. Beside busy cores one of them may stand
// still for as long elsewhere and be lost as well, but not in each of these jobs.
TEST_F(ElasticJobs, KillTheRankThatHangsBeforeAnEvaluation) {
  const Words job{"model=cnn", "die=0:evaluation:1:hang"};
  int lost = 0;
  for (int attempt = 0; attempt < 3 && lost != 1; ++attempt) {
    const Ended ended = run(3, "1:3", job, {"--hang-timeout", "5"});
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
    EXPECT_EQ(hash_in(ended), undisturbed({"model=cnn"}));
    expect_deaths(job, ended.out);
    EXPECT_THAT(ended.err, ContainsRegex("lockstep: member 0 \\(rank 0, pid [0-9]+\\) was lost: "
                                         "killed by the launcher, since it made no progress"));
    lost = testing::occurrences(ended.err, "was lost");
  }
  EXPECT_EQ(lost, 1);
}

TEST_F(ElasticJobs, RefuseAGroupWithoutAllRanks) {
  const Ended ended = run(2, "1:2", {"group=split"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("elastic and has 2 ranks, and the trainer's group is"),
                               HasSubstr("give the trainer the group of init_process_group()")));
}

TEST_F(ElasticJobs, TrainOnceInAProcess) {
  for (const char* const again : {"again=fit", "again=trainer"}) {
    const Ended ended = run(1, "1:1", {"model=linear", "epochs=1", again});
    EXPECT_EQ(ended.code, 2) << again;
    EXPECT_THAT(ended.err, HasSubstr("a process of an elastic job trains once, with one Trainer"));
  }
}

TEST_F(ElasticJobs, RefuseATrainingThatDependsOnTheNumberOfRanks) {
  const Ended ended = run(2, "1:2", {"microbatches=0"});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("without microbatches the result depends on the number"),
                               HasSubstr("set .microbatches")));
}

}  // namespace
}  // namespace lockstep
