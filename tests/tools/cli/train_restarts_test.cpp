// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --max-restarts` around a training that loses a rank: its net must have the bytes
// that it has when nothing happens.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "support/free_port.h"
#include "support/marked_processes.h"
#include "tests/tools/cli/newest_step.h"
#include "tests/tools/cli/train_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::Program;
using Words = std::vector<std::string>;

class TrainRestarts : public TrainFixture {
 protected:
  std::string path(const std::string& name) const { return folder().path() / name; }

  // A job of two ranks that saves after each step. `run` are the options of `lockstep run`.
  Words command(const std::string& name, const Words& run, const Words& more = {}) const {
    Words words{LOCKSTEP_PROGRAM, "run"};
    words.insert(words.end(), run.begin(), run.end());
    const Words train{LOCKSTEP_PROGRAM,
                      "train",
                      "mlp",
                      "--device",
                      "cpu",
                      "--data",
                      data(),
                      "--global-batch-size",
                      "4",
                      "--epochs",
                      "4",
                      "--checkpoint-dir",
                      path(name + "/checkpoints"),
                      "--checkpoint-every",
                      "1",
                      "--resume",
                      "--save",
                      path(name + "/net.pt")};
    words.insert(words.end(), train.begin(), train.end());
    words.insert(words.end(), more.begin(), more.end());
    fs::create_directory(path(name));
    return words;
  }

  // The file has the same name in each folder: libtorch writes the name into it.
  std::string net(const std::string& name) const {
    std::ifstream in(path(name + "/net.pt"), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  // Waits until the attempt has saved a checkpoint after `step`, and signals a rank of it.
  void signal_after(std::int64_t step, const std::string& name, int attempt, int rank,
                    int signal) const {
    std::vector<pid_t> ranks;
    ASSERT_TRUE(testing::eventually([&] {
      ranks = marked_.with(
          {fmt::format("RANK={}", rank), fmt::format("TORCHELASTIC_RESTART_COUNT={}", attempt)});
      return ranks.size() == 1;
    }));
    const std::string checkpoints = path(name + "/checkpoints");
    const std::int64_t before = std::max(step, testing::newest_step(checkpoints));
    ASSERT_TRUE(testing::eventually([&] { return testing::newest_step(checkpoints) > before; }))
        << "after step " << before;
    ::kill(ranks[0], signal);
  }

  std::string undisturbed(const Words& run) const {
    const testing::Ended ended = testing::run_to_end(command("undisturbed", run));
    EXPECT_EQ(ended.code, 0) << ended.err;
    const std::string bytes = net("undisturbed");
    EXPECT_NE(bytes, "");
    return bytes;
  }

 private:
  const testing::MarkedProcesses marked_;
};

TEST_F(TrainRestarts, ANetThatLostItsRanksIsTheUndisturbedOne) {
  const std::string expected = undisturbed({"-n", "2"});
  Program job(command("disturbed", {"-n", "2", "--max-restarts", "2"}));
  signal_after(20, "disturbed", 0, 1, SIGKILL);
  signal_after(80, "disturbed", 1, 0, SIGSEGV);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(net("disturbed") == expected);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("restart 1 of 2"), HasSubstr("restart 2 of 2")));
}

TEST_F(TrainRestarts, ARankThatHangsIsKilledAfterTheTimeoutOfItsGroup) {
  const std::string expected = undisturbed({"-n", "2"});
  Program job(command("disturbed", {"-n", "2", "--max-restarts", "1"}, {"--timeout", "8"}));
  signal_after(20, "disturbed", 0, 1, SIGSTOP);
  EXPECT_EQ(job.wait(), 0) << job.err();
  EXPECT_TRUE(net("disturbed") == expected);
  EXPECT_THAT(job.err(), HasSubstr("failed first: stopped by signal 19 (SIGSTOP); "));
}

TEST_F(TrainRestarts, TwoAgentsGoOnTogether) {
  const auto agent = [](int machine, int port) {
    return Words{"-n",
                 "1",
                 "--nnodes",
                 "2",
                 "--node-rank",
                 std::to_string(machine),
                 "--rdzv-endpoint",
                 "127.0.0.1:" + std::to_string(port),
                 "--max-restarts",
                 "1"};
  };
  const std::string expected = undisturbed({"-n", "2"});
  const int port = testing::free_port();
  Program first(command("disturbed", agent(0, port)));
  Program second(command("disturbed", agent(1, port)));
  signal_after(20, "disturbed", 0, 1, SIGKILL);
  EXPECT_EQ(first.wait(), 0) << first.err();
  EXPECT_EQ(second.wait(), 0) << second.err();
  EXPECT_TRUE(net("disturbed") == expected);
  EXPECT_THAT(first.err(), HasSubstr("on machine 1) failed first: killed by signal 9 (SIGKILL)"));
}

TEST_F(TrainRestarts, TheSummaryHasTheStepOfEachAttempt) {
  Program job(command("disturbed", {"-n", "2", "--max-restarts", "1"}));
  for (const int attempt : {0, 1}) {
    signal_after(20 + 40 * attempt, "disturbed", attempt, 1, SIGKILL);
  }
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.err(), ContainsRegex("attempt 1: [0-9.]+ s, step [1-9][0-9]+: rank 1 of 2"));
}

}  // namespace
}  // namespace lockstep
