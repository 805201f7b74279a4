// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train` in an elastic job, of which a rank is killed while it trains.
#include <csignal>

#include "support/marked_processes.h"
#include "tests/tools/cli/train_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::Ended;
using ::testing::HasSubstr;
using testing::Program;
using Words = std::vector<std::string>;

class TrainElastic : public TrainFixture {
 protected:
  Words train(const Words& more) const {
    Words words{LOCKSTEP_PROGRAM,
                "train",
                "mlp",
                "--device",
                "cpu",
                "--data",
                data(),
                "--epochs",
                "80",
                "--microbatches",
                "4",
                "--batch-size",
                "2"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  static Words elastic(const std::string& bounds, int ranks, const Words& program) {
    Words words{LOCKSTEP_PROGRAM, "run", "-n", std::to_string(ranks), "--elastic", bounds, "--"};
    words.insert(words.end(), program.begin(), program.end());
    return words;
  }

  static std::string hash_in(const std::string& out) {
    const std::string before = "SHA-256 of weights, buffers and optimizer state: ";
    const auto begin = out.find(before);
    return begin == std::string::npos ? "none" : out.substr(begin + before.size(), 64);
  }

  void kill_member(int member) const {
    const auto found = marked_.with({"LOCKSTEP_MEMBER=" + std::to_string(member)});
    ASSERT_EQ(found.size(), 1u);
    ::kill(found[0], SIGKILL);
  }

 private:
  const testing::MarkedProcesses marked_;
};

TEST_F(TrainElastic, EndsWithTheNetOfOneProcess) {
  const Ended alone = testing::run_to_end(train({}));
  ASSERT_EQ(alone.code, 0) << alone.err;
  for (const int killed : {0, 1}) {
    Program job(elastic("1:2", 2, train({})));
    job.wait_for("epoch 3/80: ");
    kill_member(killed);
    EXPECT_EQ(job.wait(), 0) << job.err();
    EXPECT_EQ(hash_in(job.out()), hash_in(alone.out)) << job.out() << job.err();
    EXPECT_THAT(job.out(), HasSubstr("generation 1: 1 rank goes on after step "));
  }
}

TEST_F(TrainElastic, EndsWithTheNetOfOneProcessIfRanksHaveOneCopy) {
  const Ended alone = testing::run_to_end(train({}));
  Program job(elastic("1:2", 2, train({"--one-copy"})));
  job.wait_for("epoch 3/80: ");
  kill_member(1);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_EQ(hash_in(job.out()), hash_in(alone.out)) << job.out() << job.err();
  EXPECT_THAT(job.out(), HasSubstr("with the optimizer's state from the memory that they shared"));
}

TEST_F(TrainElastic, RefusesRecordsThatFollowTheRanks) {
  const std::string file = folder().path() / "metrics.jsonl";
  const Ended ended = testing::run_to_end(elastic("1:2", 2, train({"--metrics", file})));
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--metrics follows the ranks from the start to the end"));
}

}  // namespace
}  // namespace lockstep
