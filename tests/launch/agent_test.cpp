// SPDX-License-Identifier: BSD-3-Clause
// How an agent starts ranks, passes on their output, and ends them.
#include "lockstep/launch/agent.h"

#include <cstdio>
#include <fstream>
#include <map>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/remove_folder.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using testing::count_marked;
using ::testing::ElementsAre;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

// For scripts: waits until the file exists.
const std::string kMeet = "meet() { until test -e $TMPDIR/$1; do sleep 0.01; done; }; ";

class Agent : public ::testing::Test {
 protected:
  Agent() { ::setenv("LOCKSTEP_TEST_MARK", mark.c_str(), 1); }
  ~Agent() override {
    EXPECT_THAT(tmpdir.entries(), IsEmpty());
    EXPECT_EQ(testing::count_descriptors(), descriptors);
    // What was killed ends when the kernel comes to it.
    EXPECT_TRUE(eventually([&] { return count_marked(mark) == 0; }));
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
    ::unsetenv("LOCKSTEP_TEST_MARK");
  }

  // Runs a shell script in each rank and keeps the lines of each.
  AgentResult run_script(const std::string& script, AgentOptions options) {
    options.program = {"sh", "-c", kMeet + script};
    options.on_line = [this](const OutputLine& line) {
      lines[line.rank].emplace_back(line.text);
      streams[line.rank].push_back(line.stream);
    };
    return run_agent(options);
  }

  void remove_files(const std::vector<std::string>& names) {
    for (const auto& name : names) EXPECT_TRUE(std::filesystem::remove(tmpdir.path() / name));
  }

  const testing::PrivateTmpdir tmpdir;
  const std::string mark = testing::unique_mark();
  const int descriptors = testing::count_descriptors();
  std::map<int, std::vector<std::string>> lines;
  std::map<int, std::vector<OutputStream>> streams;
};

TEST_F(Agent, SetsTorchrunsVariables) {
  const std::string script =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
      "$ROLE_RANK $ROLE_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RESTART_COUNT "
      "$TORCHELASTIC_MAX_RESTARTS; echo $MASTER_PORT; echo $TORCHELASTIC_RUN_ID; "
      "test -S $LOCKSTEP_STORE && echo socket; echo $EXTRA";
  const AgentResult result =
      run_script(script, {.ranks = 3, .environment = {{"EXTRA", "more"}, {"ROLE_RANK", "r"}}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_FALSE(result.failure);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(lines[rank].size(), 5u);
    const std::string r = std::to_string(rank);
    EXPECT_EQ(lines[rank][0], r + " 3 " + r + " 3 0 1 r 3 127.0.0.1 0 0");
    EXPECT_GT(std::stoi(lines[rank][1]), 1023);
    EXPECT_EQ(lines[rank][1], lines[0][1]);
    EXPECT_THAT(lines[rank][2], StartsWith("lockstep-"));
    EXPECT_EQ(lines[rank][3], "socket");
    EXPECT_EQ(lines[rank][4], "more");
  }
}

TEST_F(Agent, RanksDoNotWriteWhatThisProcessHasInABuffer) {
  std::fputs("not written yet ", stdout);
  run_script("echo mine", {.ranks = 1});
  EXPECT_THAT(lines[0], ElementsAre("mine"));
}

TEST_F(Agent, SharesOutTheCoresUnlessTheEnvironmentSaysOtherwise) {
  const std::string script = "echo ${OMP_NUM_THREADS:-none} ${OPENBLAS_NUM_THREADS:-none}";
  const auto threads = [&](const AgentOptions& options) {
    lines.clear();
    run_script(script, options);
    return lines[0].at(0);
  };
  ::unsetenv("OMP_NUM_THREADS");
  ::unsetenv("OPENBLAS_NUM_THREADS");
  const std::string all = std::to_string(available_cores());
  EXPECT_EQ(threads({.ranks = 1}), all + " " + all);
  EXPECT_EQ(threads({.ranks = available_cores() + 1}), "1 1");
  EXPECT_EQ(threads({.ranks = 1, .threads = 5}), "5 5");
  ::setenv("OMP_NUM_THREADS", "7", 1);
  EXPECT_EQ(threads({.ranks = 1}), "7 none");
  EXPECT_EQ(threads({.ranks = 1, .threads = 5}), "5 5");
  ::setenv("OPENBLAS_NUM_THREADS", "6", 1);
  EXPECT_EQ(threads({.ranks = 1}), "7 6");
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads({.ranks = 1}), all + " 6");
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::setenv("OPENBLAS_NUM_THREADS", "1", 1);
}

TEST_F(Agent, KeepsStreamsApartAndAPartialLastLine) {
  EXPECT_EQ(run_script("echo one; printf two; echo other >&2; cat", {}).exit_code, 0);
  std::map<OutputStream, std::vector<std::string>> seen;
  for (std::size_t i = 0; i < lines[0].size(); ++i) seen[streams[0][i]].push_back(lines[0][i]);
  EXPECT_THAT(seen[OutputStream::out], ElementsAre("one", "two"));
  EXPECT_THAT(seen[OutputStream::err], ElementsAre("other"));
}

TEST_F(Agent, CarriesMuchOutputWhole) {
  EXPECT_EQ(run_script("seq 1 100000", {.ranks = 2}).exit_code, 0);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(lines[rank].size(), 100000u);
    EXPECT_EQ(lines[rank].back(), "100000");
  }
}

TEST_F(Agent, BytesPassUnchanged) {
  std::string bytes;
  for (int i = 0; i < 1 << 20; ++i) bytes += static_cast<char>((i * 7 + (i >> 8)) % 256);
  std::ofstream(tmpdir.path() / "bytes") << bytes;
  EXPECT_EQ(run_script("cat $TMPDIR/bytes", {}).exit_code, 0);
  std::string seen;
  for (const std::string& line : lines[0]) seen += line + '\n';
  EXPECT_TRUE(seen == bytes || seen == bytes + '\n');
  remove_files({"bytes"});
}

TEST_F(Agent, NamesTheRankThatFailedAndItsLastLines) {
  const AgentResult result = run_script(
      "test $RANK = 1 && { echo working; echo broken >&2; exit 3; }; sleep 1000", {.ranks = 3});
  EXPECT_EQ(result.exit_code, 3);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->rank, 1);
  EXPECT_EQ(result.failure->cause, "exit code 3");
  EXPECT_THAT(result.failure->last_lines, Contains("broken"));
  EXPECT_THAT(report(result, 3),
              AllOf(StartsWith("rank 1 of 3 (pid "), HasSubstr("failed first: exit code 3\n"),
                    HasSubstr("  broken\n")));
}

TEST_F(Agent, SaysThatASignalKilledARank) {
  const AgentResult result = run_script("test $RANK = 2 && kill -9 $$; sleep 1000", {.ranks = 3});
  EXPECT_EQ(result.exit_code, 137);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->rank, 2);
  EXPECT_THAT(result.failure->cause, StartsWith("killed by signal 9 (SIGKILL), "));
}

TEST_F(Agent, OthersEndSoonEvenIfTheyIgnoreSigterm) {
  Deadline::Clock::time_point failed;
  AgentOptions options{.ranks = 3};
  options.program = {"sh", "-c",
                     kMeet +
                         "trap '' TERM; touch $TMPDIR/$RANK; meet 1; meet 2;"
                         "test $RANK = 0 && { echo failing; exit 1; }; sleep 1000 & wait; wait"};
  options.on_line = [&](const OutputLine& line) {
    if (line.text == "failing") failed = Deadline::Clock::now();
  };
  EXPECT_EQ(options.stop_grace, 500ms);
  EXPECT_EQ(run_agent(options).exit_code, 1);
  const auto took = Deadline::Clock::now() - failed;
  EXPECT_GE(took, 450ms) << "they had no grace";
  EXPECT_LE(took, 9s) << "they had another grace, of 10 s";
  remove_files({"0", "1", "2"});
}

TEST_F(Agent, RanksHaveTheirGrace) {
  const AgentResult result = run_script(
      "test $RANK = 0 && { meet 1; exit 4; }; trap 'echo saved; exit 0' TERM; touch $TMPDIR/1; "
      "sleep 1000 & wait",
      {.ranks = 2, .stop_grace = 30s});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(lines[1], Contains("saved"));
  remove_files({"1"});
}

TEST_F(Agent, ARankMayEndWellBeforeTheOthers) {
  // Rank 1 waits until rank 0 is a zombie, which only its launcher can make of it.
  EXPECT_EQ(
      run_script("test $RANK = 0 && { echo $$ >$TMPDIR/pid; mv $TMPDIR/pid $TMPDIR/0; exit 0; }; "
                 "meet 0; while test -n \"$(tr -d '\\0' </proc/$(cat $TMPDIR/0)/cmdline)\"; do "
                 ":; done; echo late",
                 {.ranks = 2})
          .exit_code,
      0);
  EXPECT_THAT(lines[1], ElementsAre("late"));
  remove_files({"0"});
}

TEST_F(Agent, OfSeveralAtOnceOneThatWasKilledFailedFirst) {
  // Stops its parent, the agent, lets both ranks end meanwhile, and wakes it.
  AgentOptions options{.ranks = 2};
  const pid_t agent = ::getpid();
  const pid_t stopper = ::fork();
  if (stopper == 0) {
    ::setsid();
    const auto ended = [&](const std::string& name) {
      return std::filesystem::exists(tmpdir.path() / name);
    };
    bool ok = eventually([&] { return ended("0") && ended("1"); });
    const pid_t keeper = testing::children_of(agent).back();
    const std::vector<pid_t> ranks = testing::children_of(keeper);
    ::kill(agent, SIGSTOP);
    std::ofstream(tmpdir.path() / "go");
    // The keeper has told of both when it sleeps again.
    ok = ok && ranks.size() == 2 && eventually([&] {
           return testing::state_of(ranks[0]) == 'Z' && testing::state_of(ranks[1]) == 'Z' &&
                  testing::state_of(keeper) == 'S';
         });
    ::kill(agent, SIGCONT);
    ::_exit(ok ? 0 : 1);
  }
  const AgentResult result = run_script(
      "touch $TMPDIR/$RANK; meet go;"
      "test $RANK = 0 && exit 1; kill -9 $$",
      options);
  int status = 0;
  ASSERT_EQ(::waitpid(stopper, &status, 0), stopper);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(result.failure);
  EXPECT_EQ(result.failure->rank, 1);
  EXPECT_EQ(result.exit_code, 137);
  remove_files({"0", "1", "go"});
}

TEST_F(Agent, LeavesNoGrandchildren) {
  // One in the rank's group, one in a session of its own, and two whose parents have ended too.
  const std::string script =
      "sleep 1000 & setsid sleep 1000 & "
      "(setsid sh -c 'sleep 1000 & touch $TMPDIR/$RANK; sleep 1000' &) & meet 0; meet 1; ";
  EXPECT_EQ(run_script(script + "exit 0", {.ranks = 2, .end_orphans = true}).exit_code, 0);
  EXPECT_EQ(count_marked(mark), 0);
  remove_files({"0", "1"});
  EXPECT_EQ(run_script(script + "exit 5", {.ranks = 2, .end_orphans = true}).exit_code, 5);
  EXPECT_EQ(count_marked(mark), 0);
  remove_files({"0", "1"});
}

TEST_F(Agent, WithoutAdoptionEndsTheGroups) {
  EXPECT_EQ(run_script("sleep 1000 & (sleep 1000 &) & exit 0", {.ranks = 2}).exit_code, 0);
  // They are no children of this process: init reaps them.
  EXPECT_TRUE(eventually([&] { return count_marked(mark) == 0; }));
}

TEST_F(Agent, SaysThatAProgramCannotBeExecuted) {
  AgentOptions options{.program = {"lockstep-no-such-program"}, .ranks = 2};
  AgentResult result = run_agent(options);
  EXPECT_EQ(result.exit_code, 127);
  EXPECT_EQ(result.failure->cause,
            "cannot execute lockstep-no-such-program: No such file or directory");
  options.program = {"/dev/null"};
  result = run_agent(options);
  EXPECT_EQ(result.exit_code, 126);
  EXPECT_EQ(result.failure->cause, "cannot execute /dev/null: Permission denied");
}

TEST_F(Agent, RanksHaveATerminalThatIsDumbUnlessItIsShown) {
  ::setenv("TERM", "xterm", 1);
  const std::string script = "test -t 1 && echo out; test -t 2 || echo piped; echo $TERM";
  EXPECT_EQ(run_script(script, {}).exit_code, 0);
  EXPECT_THAT(lines[0], ElementsAre("out", "piped", "dumb"));
  lines.clear();
  run_script("echo $TERM", {.environment = {{"TERM", "vt100"}}});
  EXPECT_THAT(lines[0], ElementsAre("vt100"));
}

TEST_F(Agent, GivesTheStoresContents) {
  const AgentResult result = run_agent({.ranks = 2}, [](int rank, const UniqueFd&) {
    LocalStore store(std::getenv("LOCKSTEP_STORE"));
    store.set("from " + std::to_string(rank), "hello");
    if (rank == 0) store.set("peer said", store.get("from 1", Deadline::after(30s)));
  });
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.store.size(), 3u);
  EXPECT_EQ(result.store.find("peer said")->second, "hello");
}

TEST_F(Agent, WritesLogFiles) {
  const std::string folder = tmpdir.path() / "deep/logs";
  EXPECT_EQ(run_script("echo I am $RANK", {.ranks = 2, .log_dir = folder}).exit_code, 0);
  std::string text;
  std::getline(std::ifstream(folder + "/rank_1.log"), text);
  EXPECT_EQ(text, "I am 1");
  EXPECT_THAT([&] { run_script("true", {.log_dir = "/dev/null/x"}); },
              ThrowsMessage<UsageError>(HasSubstr("/dev/null/x")));
  remove_folder(tmpdir.path() / "deep");
}

TEST_F(Agent, RefusesOptionsThatCannotBe) {
  EXPECT_THROW(run_agent({}), UsageError);
  EXPECT_THROW(run_agent({.program = {"true"}, .ranks = 0}), UsageError);
  EXPECT_THROW(run_agent({.program = {"true"}, .threads = 0}), UsageError);
  EXPECT_THROW(run_agent({.program = {"true"}, .ranks = 2, .shown_ranks = {{2}}}), UsageError);
}

TEST_F(Agent, WorksWhereChildrenAreIgnored) {
  ::signal(SIGCHLD, SIG_IGN);
  EXPECT_EQ(run_script("exit 6", {}).exit_code, 6);
  EXPECT_EQ(::signal(SIGCHLD, SIG_DFL), SIG_IGN) << "it is as it was";
}

}  // namespace
}  // namespace lockstep
