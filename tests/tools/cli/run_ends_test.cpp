// SPDX-License-Identifier: BSD-3-Clause
// How `lockstep run` and its ranks end by signals, and when memory runs out.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/memory_group.h"
#include "tests/tools/cli/run_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::count_marked;
using testing::Ended;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Program;
using ::testing::StartsWith;
using testing::without_oversubscription_warning;

const std::string kSleepWithChild = "sleep 1000 & echo ready; sleep 1000";

TEST_F(Run, CtrlCEndsTheRanks) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Program program(command({"-n", "2", "sh", "-c", kSleepWithChild}));
    program.wait_for("ready", 2);
    program.signal(signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_THAT(without_oversubscription_warning(program.err()),
                StartsWith("lockstep run: stopped by signal "));
    EXPECT_EQ(count_marked(mark), 0);
  }
}

TEST_F(Run, RanksGetTheSignalAndTimeToSave) {
  Program program(command({"-n", "2", "sh", "-c",
                           "trap 'echo saved $RANK; exit 0' INT; echo ready; "
                           "while :; do sleep 0.01; done"}));
  program.wait_for("ready", 2);
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT);
  EXPECT_THAT(program.out(), AllOf(HasSubstr("saved 0"), HasSubstr("saved 1")));
}

TEST_F(Run, RanksGetANoticeAndGoOn) {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, SIGURG, SIGRTMIN + 1}) {
    Program program(
        command({"-n", "2", "sh", "-c",
                 fmt::format("trap 'echo told' {}; echo ready; until test -e $TMPDIR/go; do "
                             "sleep 0.01; done; echo done $RANK",
                             signal)}));
    program.wait_for("ready", 2);
    program.signal(signal);
    program.wait_for("told", 2);
    std::ofstream(tmpdir.path() / "go");
    EXPECT_EQ(program.wait(), 0) << signal;
    EXPECT_THAT(program.out(), AllOf(HasSubstr("done 0"), HasSubstr("done 1")));
    std::filesystem::remove(tmpdir.path() / "go");
  }
}

TEST_F(Run, ANoticeThatNoProgramHandlesIsNamed) {
  Program program(command({"-n", "1", "sh", "-c", "echo ready; exec sleep 1000"}));
  program.wait_for("ready");
  program.signal(SIGUSR1);
  EXPECT_EQ(program.wait(), 128 + SIGUSR1);
  EXPECT_THAT(program.err(),
              HasSubstr("failed first: killed by signal 10 (SIGUSR1), which its launcher got and "
                        "passed on; handle or ignore the signal in the program\n"));
}

// Whether all these processes are stopped, or all are not. A shell between vfork() and exec() waits
// in state D for its child, which is stopped too.
bool all_stopped(const std::vector<pid_t>& processes, bool stopped) {
  const auto is_stopped = [](pid_t process) {
    const char state = testing::state_of(process);
    return state == 'T' || state == 'D';
  };
  return eventually([&] {
    return std::ranges::all_of(processes,
                               [&](pid_t process) { return is_stopped(process) == stopped; });
  });
}

// The numbers that follow this word.
std::vector<pid_t> numbers_after(const std::string& name, const std::string& text) {
  std::vector<pid_t> found;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    pid_t number = 0;
    if (word == name && words >> number) found.push_back(number);
  }
  return found;
}

TEST_F(Run, CtrlZStopsTheRanksUntilTheyAreContinued) {
  // timeout gives the launcher a process group of its own, as a shell with job control does;
  // without one, the kernel may not stop it.
  Program program({"timeout", "90", LOCKSTEP_PROGRAM, "run", "-n", "2", "sh", "-c",
                   "echo rank-pid $$; until test -e $TMPDIR/go; do sleep 0.01; done; echo done"});
  program.wait_for("rank-pid", 2);
  const pid_t launcher = testing::children_of(program.pid()).at(0);
  std::vector<pid_t> processes = numbers_after("rank-pid", program.out());
  processes.push_back(launcher);
  ::kill(launcher, SIGTSTP);
  EXPECT_TRUE(all_stopped(processes, true));
  std::ofstream(tmpdir.path() / "go");
  ::kill(launcher, SIGCONT);
  program.wait_for("done", 2);
  EXPECT_EQ(program.wait(), 0);
  std::filesystem::remove(tmpdir.path() / "go");
}

// A rank that has much to save: each SIGTERM is a line, and it ends when there is a file "go".
const std::string kSaves =
    "trap 'echo saving' TERM; echo rank-pid $$; touch $TMPDIR/ready; "
    "until test -e $TMPDIR/go; do sleep 0.01; done; echo saved";

TEST_F(Run, AStopTakesNothingOfTheGrace) {
  Program program(command({"-n", "2", "--stop-grace", "8", "sh", "-c", kSaves}));
  program.wait_for("rank-pid", 2);
  program.signal(SIGTERM);
  program.wait_for("saving", 2);
  program.signal(SIGTSTP);
  const std::vector<pid_t> ranks = numbers_after("rank-pid", program.out());
  EXPECT_TRUE(all_stopped(ranks, true));
  std::this_thread::sleep_for(8500ms);
  program.signal(SIGCONT);
  EXPECT_TRUE(all_stopped(ranks, false));
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_EQ(testing::occurrences(program.out(), "saved"), 2);
  for (const char* name : {"ready", "go"}) std::filesystem::remove(tmpdir.path() / name);
}

// Rank 1 fails once rank 0 is ready to save.
const std::string kOneFails =
    "test $RANK = 0 || { until test -e $TMPDIR/ready; do sleep 0.01; done; exit 3; }; ";

TEST_F(Run, TheGraceIsAnOption) {
  const std::string slow =
      "trap 'sleep 3; echo saved; exit 0' TERM; touch $TMPDIR/ready; while :; do sleep 0.01; done";
  const Ended survives = run({"-n", "2", "--stop-grace", "60", "sh", "-c", kOneFails + slow});
  EXPECT_EQ(survives.code, 3);
  EXPECT_THAT(survives.out, HasSubstr("saved"));
  std::filesystem::remove(tmpdir.path() / "ready");
  Program killed(command({"-n", "1", "--stop-grace", "0", "sh", "-c", slow}));
  EXPECT_TRUE(eventually([&] { return std::filesystem::exists(tmpdir.path() / "ready"); }));
  killed.signal(SIGTERM);
  EXPECT_EQ(killed.wait(), 128 + SIGTERM);
  EXPECT_THAT(killed.out(), Not(HasSubstr("saved")));
  std::filesystem::remove(tmpdir.path() / "ready");
}

TEST_F(Run, ASignalLeavesTheSurvivorsOfAFailureTheirGrace) {
  Program program(command({"-n", "2", "--stop-grace", "60", "sh", "-c", kOneFails + kSaves}));
  program.wait_for("saving");
  program.signal(SIGTERM);
  program.wait_for("saving", 2);
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(program.wait(), 3);
  EXPECT_THAT(program.out(), HasSubstr("saved"));
  for (const char* name : {"ready", "go"}) std::filesystem::remove(tmpdir.path() / name);
}

TEST_F(Run, AStoppedRankEndsToo) {
  Program program(
      command({"-n", "2", "--stop-grace", "60", "sh", "-c", "echo ready; kill -STOP $$"}));
  program.wait_for("ready", 2);
  const auto begin = std::chrono::steady_clock::now();
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 40s) << "it waited for the grace of 60 s";
}

TEST_F(Run, ASecondCtrlCKills) {
  Program program(command({"-n", "2", "--stop-grace", "60", "sh", "-c",
                           "trap '' INT TERM; echo ready; while :; do sleep 0.1; done"}));
  program.wait_for("ready", 2);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(program.wait_signalling(SIGINT), 128 + SIGINT);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 40s) << "it waited for the grace of 60 s";
}

constexpr const char* kNoMemoryGroup = "this machine lets no test limit memory by a control group";

TEST_F(Run, TellsTheKernelsOutOfMemoryKillerFromOthers) {
  const testing::MemoryGroup group(std::int64_t{256} << 20);
  if (!group.usable()) GTEST_SKIP() << kNoMemoryGroup;
  const std::string launch =
      "echo $$ >" + group.members() + "; exec " LOCKSTEP_PROGRAM " run -n 2 ";
  // tail keeps a line until it has all of it.
  Program too_large({"sh", "-c",
                     launch + "sh -c 'test $RANK = 0 || exec tail /dev/zero; "
                              "sleep 1000'"});
  EXPECT_EQ(too_large.wait(), 128 + SIGKILL);
  EXPECT_THAT(too_large.err(),
              AllOf(HasSubstr("rank 1 of 2 (pid "),
                    HasSubstr("failed first: killed by the kernel: out of memory, the control "
                              "group's limit is 256 MiB\n")));
  Program killed({"sh", "-c", launch + "sh -c 'test $RANK = 0 || kill -9 $$; sleep 1000'"});
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_THAT(killed.err(), HasSubstr("its control group did not run out of memory\n"));
}

// One child in the rank's group, one in a session of its own, and one whose parent has ended too.
const std::string kSleepWithChildren =
    "sleep 1000 & setsid sleep 1000 & (setsid sleep 1000 &); echo ready; sleep 1000";

TEST_F(Run, AKilledLauncherTakesItsRanksAndAllTheirChildrenAlong) {
  Program program(command({"-n", "2", "sh", "-c", kSleepWithChildren}));
  program.wait_for("ready", 2);
  EXPECT_THAT(tmpdir.entries(), Not(IsEmpty()));
  const std::string launcher = "the launcher (pid " + std::to_string(program.pid()) + ")";
  program.signal(SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_EQ(without_oversubscription_warning(program.err()),
            "lockstep: " + launcher +
                " ended before its ranks, by kill -9 or a crash; its ranks were "
                "ended\n");
  EXPECT_EQ(count_marked(mark), 0) << "all had ended when its output was closed";
}

TEST_F(Run, ALaterJobRemovesTheFolderOfOneThatWasKilledWhole) {
  Program alive(command({"-n", "1", "sh", "-c",
                         "echo ready; until test -e $TMPDIR/go; do "
                         "sleep 0.01; done; test -S $LOCKSTEP_STORE"}));
  alive.wait_for("ready");
  Program killed(command({"-n", "1", "sh", "-c", "echo ready; exec sleep 1000"}));
  killed.wait_for("ready");
  const pid_t keeper = testing::children_of(killed.pid()).at(0);
  // Stopped, neither can end the job in order.
  for (const pid_t one : {killed.pid(), keeper}) ::kill(one, SIGSTOP);
  for (const pid_t one : {killed.pid(), keeper}) ::kill(one, SIGKILL);
  EXPECT_EQ(killed.wait(), 128 + SIGKILL);
  EXPECT_EQ(tmpdir.entries().size(), 2u);
  EXPECT_EQ(run({"-n", "1", "true"}).code, 0);
  EXPECT_EQ(tmpdir.entries().size(), 1u);
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(alive.wait(), 0) << "its folder is there";
  std::filesystem::remove(tmpdir.path() / "go");
}

TEST_F(Run, AKilledKeeperTakesTheRanksAndAllTheirChildrenAlong) {
  Program program(command({"-n", "2", "sh", "-c", kSleepWithChildren}));
  program.wait_for("ready", 2);
  const std::vector<pid_t> keepers = testing::children_of(program.pid());
  ASSERT_EQ(keepers.size(), 1u);
  ::kill(keepers[0], SIGKILL);
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(without_oversubscription_warning(program.err()),
              StartsWith("lockstep: the keeper of the ranks (pid " + std::to_string(keepers[0]) +
                         "), which starts and watches them, was lost, and they died with it: "
                         "killed by signal 9 (SIGKILL), "));
  EXPECT_EQ(count_marked(mark), 0);
}

TEST_F(Run, AKeeperThatIsStoppedGoesOn) {
  Program program(command({"-n", "2", "sh", "-c",
                           "echo ready; until test -e $TMPDIR/go; do sleep 0.01; done; exit 3"}));
  program.wait_for("ready", 2);
  ::kill(testing::children_of(program.pid()).at(0), SIGSTOP);
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(program.wait(), 3);
  std::filesystem::remove(tmpdir.path() / "go");
}

TEST_F(Run, TheKeeperOfALauncherThatIsOutOfMemorySaysSo) {
  const testing::MemoryGroup group(std::int64_t{256} << 20);
  if (!group.usable()) GTEST_SKIP() << kNoMemoryGroup;
  const std::string in_group = "echo $$ >" + group.members() + "; exec ";
  Program program(
      {"sh", "-c", in_group + LOCKSTEP_PROGRAM " run -n 1 sh -c 'echo ready; exec sleep 1000'"});
  program.wait_for("ready");
  const std::string launcher = std::to_string(program.pid());
  // The kernel is to choose the launcher, and then whoever takes the memory: a program of no rank,
  // since one that the keeper kills would still hold its memory while the kernel chooses again.
  std::ofstream("/proc/" + launcher + "/oom_score_adj") << 1000;
  Program greedy({"sh", "-c", in_group + "tail /dev/zero"});
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_THAT(program.err(), HasSubstr("lockstep: the launcher (pid " + launcher +
                                       ") was killed by the kernel: out of memory, the control "
                                       "group's limit is 256 MiB; its ranks were ended\n"));
  EXPECT_EQ(greedy.wait(), 128 + SIGKILL);
}

TEST_F(Run, EndsWhatRanksLeaveBehind) {
  EXPECT_EQ(run({"-n", "2", "sh", "-c", "setsid sleep 1000 & sleep 1000 & exit 0"}).code, 0);
  EXPECT_EQ(count_marked(mark), 0);
}

}  // namespace
}  // namespace lockstep
