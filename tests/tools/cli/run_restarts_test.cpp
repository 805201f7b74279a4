// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --max-restarts`, on one machine and with an agent for each of two: what each
// attempt gets, what is left of the one before, and what ends the job.
#include <algorithm>
#include <csignal>
#include <fstream>
#include <memory>
#include <sstream>

#include "support/free_port.h"
#include "tests/tools/cli/run_fixture.h"
#include <gmock/gmock.h>

#include "lockstep/core/file/remove_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Ended;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::occurrences;
using testing::Program;
using testing::sorted_lines;

const std::string kUntilAttempt1 = "test $TORCHELASTIC_RESTART_COUNT = 1 && exit 0; ";

std::string log_text(const std::filesystem::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST_F(Run, AJobIsStartedAgainAfterAFailure) {
  const Ended ended = run({"-n", "2", "--max-restarts", "3", "sh", "-c",
                           kUntilAttempt1 + "test $RANK = 1 && kill -9 $$; exec sleep 1000"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.err, MatchesRegex("lockstep run: rank 1 of 2 \\(pid [0-9]+\\) failed first: "
                                      "killed by signal 9 [^\n]*; restart 1 of 3 follows in 1 "
                                      "s\n"));
}

TEST_F(Run, AnAttemptHasItsNumberAndItsOwnStoreAndPort) {
  const Ended ended =
      run({"-n", "1", "--no-prefix", "--max_restarts", "1", "sh", "-c",
           "echo number $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
           "echo run $TORCHELASTIC_RUN_ID; echo store $LOCKSTEP_STORE; echo port $MASTER_PORT; " +
               kUntilAttempt1 + "exit 1"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("number 0 of 1\n"), HasSubstr("number 1 of 1\n")));
  std::vector<std::string> lines = sorted_lines(ended.out);
  const auto repeated = std::ranges::unique(lines);
  ASSERT_EQ(repeated.size(), 1u) << "only the run's id is the same";
  EXPECT_EQ(occurrences(ended.out, "run lockstep-"), 2);
}

TEST_F(Run, NothingOfAnAttemptIsLeftWhenTheNextOneStarts) {
  const Ended ended =
      run({"-n", "2", "--max-restarts", "1", "sh", "-c",
           "test $TORCHELASTIC_RESTART_COUNT = 1 && "
           "{ for pid in $(cat $TMPDIR/pids); do kill -0 $pid && echo alive; done; exit 0; }; "
           "trap '' TERM; setsid sleep 1000 & echo $! $$ >>$TMPDIR/pids; "
           "until test $(wc -l <$TMPDIR/pids) = 2; do sleep 0.01; done; "
           "test $RANK = 0 && kill -9 $$; sleep 1000"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, Not(HasSubstr("alive")));
  std::filesystem::remove(tmpdir.path() / "pids");
}

TEST_F(Run, EachAttemptHasItsLogFiles) {
  const std::filesystem::path logs = tmpdir.path() / "logs";
  run({"-n", "2", "--max-restarts", "1", "--log-dir", logs, "sh", "-c",
       "echo attempt $TORCHELASTIC_RESTART_COUNT of $RANK; " + kUntilAttempt1 +
           "test $RANK = 0 && exit 1; exec sleep 1000"});
  EXPECT_EQ(log_text(logs / "attempt_0/rank_0.log"), "attempt 0 of 0\n");
  EXPECT_EQ(log_text(logs / "attempt_1/rank_0.log"), "attempt 1 of 0\n");
  EXPECT_EQ(log_text(logs / "attempt_1/rank_1.log"), "attempt 1 of 1\n");
  remove_folder(logs);
}

TEST_F(Run, ACrashLoopEndsWithASummary) {
  const Ended ended = run({"-n", "2", "--max-restarts", "1", "sh", "-c",
                           "test $RANK = 1 && { echo last words; exit 3; }; exec sleep 1000"});
  EXPECT_EQ(ended.code, 3);
  const auto line = [](const std::string& attempt) {
    return "  attempt " + attempt +
           ": [0-9.]+ s: rank 1 of 2 \\(pid [0-9]+\\) failed first: " + "exit code 3\n";
  };
  EXPECT_THAT(ended.err,
              MatchesRegex("lockstep run: [^\n]*; restart 1 of 1 follows in 1 s\n"
                           "lockstep run: gave up after 2 attempts, since --max-restarts 1 is "
                           "reached:\n" +
                           line("0") + line("1") + "the last lines of rank 1:\n  last words\n"));
}

TEST_F(Run, WrongUsageOfTheProgramIsNotRepeated) {
  for (const auto& [script, code] : {std::pair{"exit 2", 2}, {"exec lockstep-no-such", 127}}) {
    const Ended ended = run({"-n", "1", "--max-restarts", "3", "sh", "-c", script});
    EXPECT_EQ(ended.code, code);
    EXPECT_THAT(ended.err, HasSubstr("not restarted, since exit code " + std::to_string(code)));
  }
}

TEST_F(Run, ASignalEndsAnAttemptWithoutARestart) {
  Program program(command({"-n", "2", "--max-restarts", "3", "sh", "-c",
                           "trap 'echo saved; exit 1' TERM; echo ready; "
                           "while :; do sleep 0.01; done"}));
  program.wait_for("ready", 2);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_EQ(occurrences(program.out(), "saved"), 2);
  EXPECT_THAT(program.err(), Not(HasSubstr("restart")));
}

// Rank 0 fails; rank 1 saves, and ends when there is a file "go".
const std::string kFailsWhileSaving =
    "test $RANK = 0 && { until test -e $TMPDIR/ready; do sleep 0.01; done; exit 3; }; "
    "trap 'echo saving' TERM; touch $TMPDIR/ready; "
    "until test -e $TMPDIR/go; do sleep 0.01; done";

TEST_F(Run, ASignalAfterAFailureEndsTheJobToo) {
  Program program(command(
      {"-n", "2", "--max-restarts", "3", "--stop-grace", "60", "sh", "-c", kFailsWhileSaving}));
  program.wait_for("saving");
  program.signal(SIGTERM);
  program.wait_for("saving", 2);
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(program.wait(), 3);
  EXPECT_THAT(program.err(), HasSubstr("not restarted, since the job was told to stop"));
  for (const char* name : {"ready", "go"}) std::filesystem::remove(tmpdir.path() / name);
}

TEST_F(Run, ASignalEndsAPause) {
  for (const int signal : {SIGINT, SIGTERM}) {
    // Standard error is only read at the end: the store's folder shows when the ranks have ended.
    Program program(
        command({"-n", "1", "--max-restarts", "1000", "sh", "-c", "echo tried; exit 3"}));
    program.wait_for("tried", 3);  // four seconds pass until the next one
    EXPECT_TRUE(eventually([&] { return tmpdir.entries().empty(); }));
    program.signal(SIGUSR1);
    program.signal(signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_EQ(occurrences(program.out(), "tried"), 3);
    EXPECT_THAT(program.err(), HasSubstr("lockstep run: stopped by signal "));
  }
}

TEST_F(Run, AKilledKeeperIsAFailureThatARestartFollows) {
  Program program(command({"-n", "2", "--max-restarts", "1", "sh", "-c",
                           kUntilAttempt1 + "setsid sleep 1000 & echo ready; exec sleep 1000"}));
  program.wait_for("ready", 2);
  ::kill(testing::children_of(program.pid()).at(0), SIGKILL);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(program.err(), HasSubstr("; restart 1 of 1 follows in 1 s\n"));
}

// Two agents with two ranks each, as two machines start them.
class TwoAgents : public Run {
 protected:
  std::unique_ptr<Program> start(int machine, const std::string& script,
                                 const std::string& restarts = "1") const {
    return std::make_unique<Program>(command(
        {"-n", "2", "--nnodes", "2", "--node-rank", std::to_string(machine), "--rdzv-endpoint",
         "127.0.0.1:" + std::to_string(port_), "--max-restarts", restarts, "sh", "-c", script}));
  }
  const int port_ = testing::free_port();
};

TEST_F(TwoAgents, StartTheNextAttemptTogether) {
  // The ranks of machine 0 do not notice by themselves.
  const std::string script = "echo run $TORCHELASTIC_RUN_ID $MASTER_PORT; " + kUntilAttempt1 +
                             "touch $TMPDIR/$RANK; test $RANK = 3 || exec sleep 1000; "
                             "for rank in 0 1 2; do until test -e $TMPDIR/$rank; do sleep 0.01; "
                             "done; done; exit 7";
  const auto first = start(0, script);
  const auto second = start(1, script);
  for (const auto& agent : {&first, &second}) {
    EXPECT_EQ((*agent)->wait(), 0);
    EXPECT_THAT((*agent)->err(),
                AllOf(HasSubstr("lockstep run: rank 3 of 4 (pid "),
                      HasSubstr(" on machine 1) failed first: exit code 7; restart 1 of 1 ")));
  }
  std::vector<std::string> lines;
  for (const auto& agent : {&first, &second}) {
    std::istringstream words((*agent)->out());
    for (std::string word; words >> word;) {
      if (word == "run") std::getline(words, lines.emplace_back());
    }
  }
  EXPECT_EQ(lines.size(), 8u);
  std::ranges::sort(lines);
  lines.erase(std::ranges::unique(lines).begin(), lines.end());
  ASSERT_EQ(lines.size(), 2u) << "all ranks have the same port, another one in each attempt";
  EXPECT_EQ(lines[0].substr(0, lines[0].rfind(' ')), lines[1].substr(0, lines[1].rfind(' ')));
  for (const char* name : {"0", "1", "2", "3"}) std::filesystem::remove(tmpdir.path() / name);
}

TEST_F(TwoAgents, GiveUpTogetherWithTheSameCode) {
  const std::string script = "test $RANK = 0 && exit 5; exec sleep 1000";
  const auto first = start(0, script);
  const auto second = start(1, script);
  for (const auto& agent : {&first, &second}) {
    EXPECT_EQ((*agent)->wait(), 5);
    EXPECT_THAT((*agent)->err(), AllOf(HasSubstr("gave up after 2 attempts"),
                                       HasSubstr("  attempt 1: "), HasSubstr("on machine 0")));
  }
}

TEST_F(TwoAgents, ASignalToOneStopsTheRanksOfBoth) {
  const std::string script =
      "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
  const auto first = start(0, script);
  const auto second = start(1, script);
  first->wait_for("ready", 2);
  second->wait_for("ready", 2);
  second->signal(SIGTERM);
  for (const auto& agent : {&first, &second}) {
    EXPECT_EQ((*agent)->wait(), 128 + SIGTERM);
    EXPECT_EQ(occurrences((*agent)->out(), "saved"), 2);
    EXPECT_THAT((*agent)->err(), HasSubstr("stopped by signal 15 (SIGTERM)"));
  }
}

TEST_F(TwoAgents, AnAgentThatWasKilledMayComeAgain) {
  const std::string script =
      "echo attempt $TORCHELASTIC_RESTART_COUNT; " + kUntilAttempt1 + "exec sleep 1000";
  for (const int killed : {0, 1}) {
    std::vector<std::unique_ptr<Program>> agents;
    for (const int machine : {0, 1}) agents.push_back(start(machine, script, "2"));
    for (const auto& agent : agents) agent->wait_for("attempt 0", 2);
    const auto index = static_cast<std::size_t>(killed);
    agents[index]->signal(SIGKILL);
    EXPECT_EQ(agents[index]->wait(), 128 + SIGKILL);
    agents[index] = start(killed, script, "2");
    for (const auto& agent : agents) {
      EXPECT_EQ(agent->wait(), 0) << killed;
      EXPECT_EQ(occurrences(agent->out(), "attempt 1"), 2) << killed;
    }
    EXPECT_THAT(agents[1 - index]->err(),
                HasSubstr("the `lockstep run` of machine " + std::to_string(killed) +
                          " was lost; restart 1 of 2 "));
  }
}

}  // namespace
}  // namespace lockstep
