// SPDX-License-Identifier: BSD-3-Clause
// `lockstep train` with checkpoints, as a user runs it: it is killed, and goes on.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "support/marked_processes.h"
#include "support/program.h"
#include "support/temporary_folder.h"
#include "tests/tools/cli/newest_step.h"
#include "tests/tools/recipes/tiny_images.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <signal.h>

#include "lockstep/core/file/remove_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Program;
using Words = std::vector<std::string>;

// Two epochs of 76 steps: 301 samples, 4 in each step.
constexpr std::int64_t kStepsPerEpoch = 76;

class TrainCheckpoints : public ::testing::Test {
 protected:
  TrainCheckpoints() { testing::write_tiny_images(folder_); }

  std::string path(const std::string& name) const { return folder_.path() / name; }

  // Everything that decides what is learned, with two ranks.
  Words command(const Words& more) const {
    Words words{LOCKSTEP_PROGRAM,
                "train",
                "mlp",
                "--ranks",
                "2",
                "--device",
                "cpu",
                "--data",
                path(""),
                "--global-batch-size",
                "4"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // The bytes of the saved net. Files of the same name: libtorch writes the name into them.
  std::string trained(const std::string& folder, Words more) const {
    fs::create_directory(path(folder));
    const std::string file = path(folder + "/net.pt");
    more.insert(more.end(), {"--save", file});
    Program program(command(more));
    EXPECT_EQ(program.wait(), 0) << program.err();
    out_ = program.out();
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::int64_t newest_step() const { return testing::newest_step(path("checkpoints")); }

  void kill_rank(int rank) const {
    for (const pid_t pid : marked_.with({"RANK=" + std::to_string(rank)})) {
      ::kill(pid, SIGKILL);
    }
  }

  // Saves after each step, and loses the rank in the middle of the first epoch. Beside busy cores,
  // this test may be too late for that.
  void lose_rank(int rank) const {
    for (int attempt = 0; attempt < 3; ++attempt) {
      remove_folder(path("checkpoints"));
      Program program(command(
          {"--epochs", "2", "--checkpoint-dir", path("checkpoints"), "--checkpoint-every", "1"}));
      ASSERT_TRUE(testing::eventually([&] { return newest_step() >= 20; }));
      kill_rank(rank);
      const int code = program.wait();
      if (newest_step() >= kStepsPerEpoch) continue;
      EXPECT_NE(code, 0);
      return;
    }
    FAIL() << "no rank was lost in the first epoch";
  }

  static std::int64_t first_step_in(const std::string& metrics) {
    std::ifstream in(metrics);
    std::string line;
    std::getline(in, line);
    return nlohmann::json::parse(line)["step"];
  }

  testing::TemporaryFolder folder_;
  const testing::MarkedProcesses marked_;
  mutable std::string out_;
};

TEST_F(TrainCheckpoints, ATrainingWhoseRankIsKilledGoesOnAsIfItHadNotStopped) {
  const std::string uninterrupted = trained("uninterrupted", {"--epochs", "2"});
  for (const int rank : {0, 1}) {
    lose_rank(rank);
    const std::int64_t step = newest_step();
    ASSERT_LT(step, kStepsPerEpoch);
    const std::string metrics = path("metrics" + std::to_string(rank));
    const Words resume{"--epochs",  "2",    "--checkpoint-dir", path("checkpoints"), "--resume",
                       "--metrics", metrics};
    const std::string resumed = trained("resumed" + std::to_string(rank), resume);
    EXPECT_TRUE(resumed == uninterrupted) << "rank " << rank;
    EXPECT_GT(first_step_in(metrics), step);
    EXPECT_THAT(out_, HasSubstr("saved at step " + std::to_string(step) + "\n"));
    EXPECT_EQ(newest_step(), 2 * kStepsPerEpoch);
  }
  // The comparison sees the steps that are missing.
  EXPECT_FALSE(trained("cold", {"--epochs", "1"}) == uninterrupted);
}

TEST_F(TrainCheckpoints, AResumedTrainingThatIsCompleteTrainsNoMore) {
  const Words words{"--epochs", "1", "--checkpoint-dir", path("checkpoints"), "--resume"};
  const std::string first = trained("first", words);
  EXPECT_THAT(out_, HasSubstr("epoch 1/1: mean loss"));
  const std::string second = trained("second", words);
  EXPECT_THAT(out_, Not(HasSubstr("mean loss")));
  EXPECT_TRUE(second == first);
}

TEST_F(TrainCheckpoints, TheLearningRateIsTheCheckpoints) {
  const auto words = [&](const std::string& epochs, const std::string& rate) {
    return Words{"--epochs",          epochs,     "--lr",      rate,           "--checkpoint-dir",
                 path("checkpoints"), "--resume", "--metrics", path("metrics")};
  };
  trained("first", words("1", "0.004"));
  EXPECT_THAT(out_, Not(HasSubstr("differ")));
  trained("second", words("2", "0.5"));
  EXPECT_THAT(out_, HasSubstr("the optimizer's learning rates differ from the checkpoint's: "
                              "initial_lr.0 0.5 (checkpoint: 0.004); the checkpoint's are used\n"));
  std::ifstream in(path("metrics"));
  std::int64_t lines = 0;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (!json.contains("learning_rate")) continue;
    EXPECT_EQ(json["learning_rate"], 0.004) << line;
    ++lines;
  }
  EXPECT_EQ(lines, 2 * (kStepsPerEpoch / 10 + 1));
}

TEST_F(TrainCheckpoints, AnotherNumberOfRanksGoesOn) {
  lose_rank(1);
  const Words resume{"--epochs",          "2",        "--checkpoint-dir",
                     path("checkpoints"), "--resume", "--ranks=1"};
  Words words = command(resume);
  words.erase(std::ranges::find(words, "--ranks"), std::ranges::find(words, "--device"));
  Program program(words);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_THAT(program.out(), AllOf(HasSubstr("saved at step "), HasSubstr("epoch 2/2: mean loss")));
  EXPECT_EQ(newest_step(), 2 * kStepsPerEpoch);
}

TEST_F(TrainCheckpoints, AnotherSeedIsRefusedAndTheRightOneIsNamed) {
  trained("first", {"--epochs", "1", "--checkpoint-dir", path("checkpoints")});
  Program program(command({"--checkpoint-dir", path("checkpoints"), "--resume", "--seed", "7"}));
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.err(), HasSubstr("the checkpoint's seed is 0, but the sampler's is 7; use "
                                       "the seed 0"));
}

TEST_F(TrainCheckpoints, RefusesWrongUseOnOneLine) {
  trained("first", {"--epochs", "1", "--checkpoint-dir", path("checkpoints")});
  const std::vector<std::pair<Words, std::string>> cases{
      {{"--resume"}, "--checkpoint-dir"},
      {{"--checkpoint-every", "5"}, "--checkpoint-dir"},
      {{"--checkpoint-every", "0", "--checkpoint-dir", "x"}, "--checkpoint-every \"0\": give"},
      {{"--checkpoint-dir", path("checkpoints")}, "has checkpoints of an earlier run; "},
      {{"--checkpoint-dir", "/dev/null/checkpoints"},
       "cannot write checkpoints into /dev/null/checkpoints: Not a directory"}};
  for (const auto& [words, message] : cases) {
    Program program(command(words));
    EXPECT_EQ(program.wait(), 2) << message;
    EXPECT_THAT(program.err(), HasSubstr(message));
    EXPECT_EQ(std::ranges::count(testing::without_oversubscription_warning(program.err()), '\n'), 1)
        << program.err();
  }
}

TEST_F(TrainCheckpoints, SaysFromWhichCheckpointAStoppedRunWouldContinue) {
  for (const std::string ranks : {"1", "2"}) {
    const std::string folder = path("checkpoints-" + ranks);
    Program program({LOCKSTEP_PROGRAM, "train", "mlp", "--ranks", ranks, "--device", "cpu",
                     "--data", path(""), "--epochs", "100000", "--checkpoint-dir", folder});
    ASSERT_TRUE(testing::eventually([&] { return fs::exists(folder + "/latest"); }));
    program.signal(SIGINT);
    EXPECT_EQ(program.wait(), 128 + SIGINT);
    // A later checkpoint may have become whole since.
    EXPECT_THAT(program.err(), HasSubstr("; --resume would continue from " + folder + "/step-"))
        << ranks;
    EXPECT_EQ(testing::occurrences(program.err(), "--resume"), 1) << ranks;
  }
}

}  // namespace
}  // namespace lockstep
