// SPDX-License-Identifier: BSD-3-Clause
// What `lockstep run` prints and logs, whoever reads it, and its exit codes.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/skip_or_fail.h"
#include "tests/tools/cli/run_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/core/file/remove_folder.h"
#include "lockstep/core/process/cpu.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using testing::count_marked;
using ::testing::ElementsAre;
using testing::Ended;
using testing::eventually;
using ::testing::HasSubstr;
using testing::Program;
using testing::sorted_lines;
using ::testing::StartsWith;
using testing::without_oversubscription_warning;

TEST_F(Run, PrefixesEachStream) {
  const Ended ended =
      run({"-n", "2", "sh", "-c", "echo out $RANK; echo err $RANK >&2; printf part"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(sorted_lines(ended.out),
              ElementsAre("[rank 0] out 0", "[rank 0] part", "[rank 1] out 1", "[rank 1] part"));
  EXPECT_THAT(sorted_lines(ended.err), ElementsAre("[rank 0] err 0", "[rank 1] err 1"));
}

TEST_F(Run, PrefixesWithTheRankAmongThoseOfAllMachines) {
  const Ended ended = run({"-n", "2", "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint",
                           "localhost:1", "sh", "-c", "echo $RANK"});
  EXPECT_THAT(sorted_lines(ended.out), ElementsAre("[rank 2] 2", "[rank 3] 3"));
}

TEST_F(Run, TellsRanksTheAddressWithoutBrackets) {
  for (const char* endpoint : {"[::1]:29500", "::1:29500"}) {
    const Ended ended = run({"-n", "1", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint",
                             endpoint, "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"});
    EXPECT_EQ(ended.out, "[rank 0] ::1 29500\n");
  }
}

TEST_F(Run, LeavesThePrefixAway) {
  EXPECT_EQ(run({"-n", "1", "--no-prefix", "echo", "hello"}).out, "hello\n");
}

TEST_F(Run, LetsIdleThreadsSleepUnlessToldOtherwise) {
  const std::vector<std::string> show{"-n", "1",  "--no-prefix",
                                      "sh", "-c", "echo $OMP_WAIT_POLICY"};
  ::unsetenv("OMP_WAIT_POLICY");
  EXPECT_EQ(run(show).out, "passive\n");
  ::setenv("OMP_WAIT_POLICY", "active", 1);
  EXPECT_EQ(run(show).out, "active\n");
  ::unsetenv("OMP_WAIT_POLICY");
}

TEST_F(Run, LetsProgramsKeepFreedMemoryUnlessToldOtherwise) {
  const std::vector<std::string> show{"-n", "1",  "--no-prefix",
                                      "sh", "-c", "echo $MALLOC_TRIM_THRESHOLD_"};
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
  EXPECT_EQ(run(show).out, "268435456\n");
  ::setenv("MALLOC_TRIM_THRESHOLD_", "1000", 1);
  EXPECT_EQ(run(show).out, "1000\n");
  ::unsetenv("MALLOC_TRIM_THRESHOLD_");
}

TEST_F(Run, ColoursOnATerminal) {
  ::unsetenv("NO_COLOR");
  const auto arguments = command({"-n", "1", "sh", "-c", "echo hello; echo oops >&2"});
  Program program(arguments, Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.out(), "\033[36m[rank 0]\033[0m hello\n");
  EXPECT_EQ(program.err(), "[rank 0] oops\n");
  ::setenv("NO_COLOR", "1", 1);
  Program plain(arguments, Program::Output::terminal);
  EXPECT_EQ(plain.wait(), 0);
  EXPECT_EQ(plain.out(), "[rank 0] hello\n");
  ::unsetenv("NO_COLOR");
}

TEST_F(Run, HandsOptionsOn) {
  EXPECT_EQ(run({"-n", "1", "echo", "-n", "--no-prefix", "--"}).out, "[rank 0] --no-prefix --\n");
  EXPECT_EQ(run({"-n", "1", "--", "echo", "--", "-n"}).out, "[rank 0] -- -n\n");
}

TEST_F(Run, WholeLinesNeverMix) {
  // Longer than a pipe takes at once, from both ranks, to one place.
  Program program({"sh", "-c",
                   LOCKSTEP_PROGRAM
                   " run -n 2 sh -c 'line=$(head -c 9000 /dev/zero | tr \"\\0\" $RANK); "
                   "i=0; while test $i -lt 50; do echo $line; i=$((i+1)); done >&$((1+RANK))'"
                   " 2>&1"});
  EXPECT_EQ(program.wait(), 0);
  const auto lines = sorted_lines(without_oversubscription_warning(program.out()));
  ASSERT_EQ(lines.size(), 100u);
  EXPECT_EQ(lines[0], "[rank 0] " + std::string(9000, '0'));
  EXPECT_EQ(lines[49], lines[0]);
  EXPECT_EQ(lines[50], "[rank 1] " + std::string(9000, '1'));
  EXPECT_EQ(lines[99], lines[50]);
}

TEST_F(Run, LinesOfBufferedProgramsComeAtOnceAndOutliveASignal) {
  // grep's stdio, like that of any program in C, keeps what goes to a pipe until it ends.
  const std::filesystem::path logs = tmpdir.path() / "logs";
  Program program(command({"-n", "1", "--log-dir", logs, "sh", "-c",
                           "mkfifo $TMPDIR/in; (echo last words; until test -e $TMPDIR/go; do "
                           "sleep 0.01; done; kill -9 $$) >$TMPDIR/in & exec grep '' $TMPDIR/in"}));
  program.wait_for("[rank 0] last words\n");
  std::stringstream log;
  log << std::ifstream(logs / "rank_0.log").rdbuf();
  EXPECT_EQ(log.str(), "last words\n");
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_THAT(program.err(), HasSubstr("the last lines of rank 0:\n  last words\n"));
  for (const char* name : {"logs", "in", "go"}) remove_folder(tmpdir.path() / name);
}

TEST_F(Run, ShowsALineBeforeItsEnd) {
  const std::string wait = "until test -e $TMPDIR/go; do sleep 0.01; done; ";
  const std::filesystem::path logs = tmpdir.path() / "logs";
  const auto shows = [&](const std::string& script, const std::vector<std::string>& options,
                         const std::string& early, const std::string& all) {
    std::vector<std::string> arguments = command(options);
    arguments.insert(arguments.end(), {"--log-dir", logs, "-n", "1", "sh", "-c", script});
    Program program(arguments);
    program.wait_for(early);
    std::stringstream log;
    log << std::ifstream(logs / "rank_0.log").rdbuf();
    EXPECT_NE(log.str(), "");
    std::ofstream(tmpdir.path() / "go");
    EXPECT_EQ(program.wait(), 0);
    EXPECT_EQ(program.out(), all);
    for (const char* name : {"logs", "go"}) remove_folder(tmpdir.path() / name);
  };
  const std::string prompt = "printf 'prompt> '; " + wait + "echo answer";
  shows(prompt, {}, "[rank 0] prompt> ", "[rank 0] prompt> answer\n");
  shows(prompt, {"--no-prefix"}, "prompt> ", "prompt> answer\n");
  const std::string bar = "printf '\\r10 %%'; " + wait + "printf '\\r20 %%\\n'";
  shows(bar, {}, "10 %", "\r[rank 0] 10 %\r[rank 0] 20 %\n");
  shows(bar, {"--no-prefix"}, "10 %", "\r10 %\r20 %\n");
}

TEST_F(Run, AnotherRanksLineEndsAnUnfinishedOne) {
  Program program(command({"-n", "2", "sh", "-c",
                           "test $RANK = 0 && { until test -e $TMPDIR/go; do sleep 0.01; done; "
                           "echo other; until test -e $TMPDIR/on; do sleep 0.01; done; exit; }; "
                           "printf one; until test -e $TMPDIR/on; do sleep 0.01; done; echo two"}));
  program.wait_for("[rank 1] one");
  std::ofstream(tmpdir.path() / "go");
  program.wait_for("[rank 0] other\n");
  std::ofstream(tmpdir.path() / "on");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.out(), "[rank 1] one\n[rank 0] other\n[rank 1] two\n");
  for (const char* name : {"on", "go"}) std::filesystem::remove(tmpdir.path() / name);
}

TEST_F(Run, WarnsOnceOfMoreRanksThanCores) {
  const std::vector<int> all = allowed_cores();
  const std::vector<int> two(all.begin(),
                             all.begin() + std::min<std::ptrdiff_t>(2, std::ssize(all)));
  const int cores = std::min(2, available_cores());
  const auto warnings = [&](int ranks) {
    pin_to_cores(two);
    Program program(command({"-n", std::to_string(ranks), "true"}));
    pin_to_cores(all);
    EXPECT_EQ(program.wait(), 0);
    return program.err();
  };
  EXPECT_EQ(warnings(cores), "");
  EXPECT_THAT(warnings(cores + 1),
              ::testing::MatchesRegex(fmt::format("lockstep: warning: {} ranks share {} cores? and "
                                                  "[^\n]*start at most {} on this machine[^\n]*\n",
                                                  cores + 1, cores, cores)));
}

TEST_F(Run, WorksWithoutPseudoTerminals) {
  const std::string without = "mount --bind /dev/null /dev/ptmx && ";
  Program possible({"unshare", "-rm", "sh", "-c", without + "true"});
  if (possible.wait() != 0) return testing::skip_or_fail("no mount namespaces: " + possible.err());
  Program program(
      {"unshare", "-rm", "sh", "-c", without + "exec " LOCKSTEP_PROGRAM " run -n 2 echo hello"});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_THAT(sorted_lines(program.out()), ElementsAre("[rank 0] hello", "[rank 1] hello"));
  const std::string err = without_oversubscription_warning(program.err());
  EXPECT_THAT(err, StartsWith("lockstep: warning: no pseudo-terminal for rank 0 ("));
  EXPECT_EQ(sorted_lines(err).size(), 1u);
}

TEST_F(Run, ShowsTheChosenRanksAndLogsAll) {
  const std::string logs = tmpdir.path() / "logs";
  const Ended ended = run({"-n", "3", "--local-ranks-filter", "0,2", "--log-dir", logs, "sh", "-c",
                           "echo hello $RANK"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(sorted_lines(ended.out), ElementsAre("[rank 0] hello 0", "[rank 2] hello 2"));
  std::stringstream log;
  log << std::ifstream(logs + "/rank_1.log").rdbuf();
  EXPECT_EQ(log.str(), "hello 1\n");
  remove_folder(logs);
}

TEST_F(Run, ReportsTheFirstFailure) {
  const Ended ended = run(
      {"-n", "3", "sh", "-c", "test $RANK = 1 && { echo last words; kill -9 $$; }; sleep 1000"});
  EXPECT_EQ(ended.code, 137);
  EXPECT_THAT(ended.err, AllOf(StartsWith("lockstep run: rank 1 of 3 (pid "),
                               HasSubstr("failed first: killed by signal 9 (SIGKILL), "),
                               HasSubstr("\nthe last lines of rank 1:\n  last words\n")));
}

TEST_F(Run, ExitCodes) {
  EXPECT_EQ(run({"-n", "2", "true"}).code, 0);
  EXPECT_EQ(run({"-n", "2", "sh", "-c", "exit 42"}).code, 42);
  EXPECT_EQ(run({"-n", "2", "lockstep-no-such-program"}).code, 127);
  EXPECT_EQ(run({"-n", "2", "/dev/null"}).code, 126);
  EXPECT_EQ(run({"-n", "1", "sh", "-c", "kill -SEGV $$"}).code, 128 + SIGSEGV);
}

TEST_F(Run, WrongUseIsTwoAndOneLine) {
  struct Case {
    std::vector<std::string> arguments;
    std::string message;
  };
  const std::vector<Case> wrong{
      {{}, "name a program"},
      {{"-n", "0", "true"}, "--nproc-per-node \"0\": give a whole number from 1 to 32768, or auto"},
      {{"-n", "x", "true"}, "--nproc-per-node \"x\": give a whole number"},
      {{"--no-such-option", "true"}, "--no-such-option"},
      {{"-n"}, "--nproc-per-node"},
      {{"-n", "2"}, "name a program"},
      {{"--threads", "0", "true"}, "--threads \"0\": give a whole number from 1 to 32768"},
      {{"--threads", "010x", "true"}, "--threads \"010x\": give a whole number"},
      {{"--threads", "", "true"}, "--threads \"\": give a whole number"},
      {{"--nnodes", "0", "true"}, "--nnodes \"0\": give a whole number from 1 to"},
      {{"--nnodes", "2", "--node-rank", "-1", "true"}, "--node-rank \"-1\": give a whole number"},
      {{"--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "host:65536", "true"},
       "--rdzv-endpoint \"host:65536\": give a host name of machine 0 and a port from 1 to 65535"},
      {{"--stop-grace", "-1", "true"}, "--stop-grace \"-1\": give a number from 0 to"},
      {{"--max-restarts", "-1", "true"}, "--max-restarts \"-1\": give a whole number from 0 to"},
      {{"--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "2001:db8::1", "true"},
       "node0:29400 or [2001:db8::1]:29400"},
      {{"--secret-fd", "0x3", "true"}, "--secret-fd \"0x3\": give a whole number from 0 to"},
      {{"--local-ranks-filter", "0,x", "true"},
       "--local-ranks-filter \"x\": give a whole number from 0 to"},
      {{"-n", "2", "--local-ranks-filter", "2", "true"}, "the output of rank 2"}};
  for (const auto& [arguments, message] : wrong) {
    const Ended ended = run(arguments);
    EXPECT_EQ(ended.code, 2);
    EXPECT_THAT(ended.err,
                AllOf(StartsWith("lockstep run: "), HasSubstr(message), HasSubstr("--help)\n")));
    EXPECT_EQ(sorted_lines(ended.err).size(), 1u) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
}

TEST_F(Run, EndsWithItsReader) {
  Program program(command({"-n", "2", "sh", "-c", "while :; do echo y; done"}));
  program.wait_for("y");
  program.close_output();
  EXPECT_EQ(program.wait(), 128 + SIGPIPE);
  EXPECT_EQ(count_marked(mark), 0);
}

TEST_F(Run, RanksMaySaveWhenTheirReaderHasLeft) {
  const std::string saved = tmpdir.path() / "saved";
  Program program(command({"-n", "1", "--stop-grace", "60", "sh", "-c",
                           "trap 'i=0; while test $i -lt 30; do echo saving; sleep 0.01; "
                           "i=$((i+1)); done; touch " +
                               saved + "; exit 0' TERM; while :; do echo y; sleep 0.01; done"}));
  program.wait_for("y");
  program.close_output();
  EXPECT_EQ(program.wait(), 128 + SIGPIPE);
  EXPECT_TRUE(std::filesystem::remove(saved));
}

TEST_F(Run, ASlowReaderGetsAll) {
  Program program({"sh", "-c", LOCKSTEP_PROGRAM " run -n 2 seq 200000 | (sleep 1.5; cat)"});
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(sorted_lines(program.out()).size(), 400000u);
}

TEST_F(Run, AReaderThatStallsDoesNotStallTheLauncher) {
  Program program(command({"-n", "2", "sh", "-c", "while :; do echo 0123456789; done"}));
  program.wait_for("0");
  // Nobody reads now. The pipes fill; the launcher still hears.
  program.signal(SIGTERM);
  EXPECT_TRUE(eventually([&] { return count_marked(mark) <= 2; }))
      << "only the launcher and its keeper are left";
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
}

TEST_F(Run, AFailureIsReportedThoughNobodyReads) {
  const auto arguments = command({"-n", "2", "sh", "-c",
                                  "test $RANK = 1 && { echo last words; kill -9 $$; }; "
                                  "while :; do echo y; done"});
  Program program(arguments, Program::Output::full);
  EXPECT_EQ(program.wait_unread(), 128 + SIGKILL);
  EXPECT_THAT(program.err(), AllOf(HasSubstr("rank 1 of 2"), HasSubstr("  last words\n")));
  std::vector<std::string> both_streams{"sh", "-c", "exec \"$0\" \"$@\" 2>&1"};
  both_streams.insert(both_streams.end(), arguments.begin(), arguments.end());
  Program silent(both_streams, Program::Output::full);
  EXPECT_EQ(silent.wait_unread(), 128 + SIGKILL);
}

TEST_F(Run, ASignalEndsItThoughNobodyReads) {
  Program program(command({"-n", "2", "sh", "-c", "echo hello; touch $TMPDIR/$RANK; sleep 1000"}),
                  Program::Output::full);
  for (const char* name : {"0", "1"}) {
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(tmpdir.path() / name); }));
  }
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait_unread(), 128 + SIGTERM);
  EXPECT_THAT(program.err(), HasSubstr("stopped by signal 15 (SIGTERM)"));
  for (const char* name : {"0", "1"}) std::filesystem::remove(tmpdir.path() / name);
}

TEST_F(Run, OutputThatIsLostIsAFailure) {
  Program program({"sh", "-c", LOCKSTEP_PROGRAM " run -n 2 echo hi >/dev/full"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_EQ(without_oversubscription_warning(program.err()),
            "lockstep run: cannot write standard output: No space left on device\n");
}

TEST_F(Run, ALogThatIsLostIsAWarningAtOnceAndAFailure) {
  const std::filesystem::path logs = tmpdir.path() / "logs";
  std::filesystem::create_directory(logs);
  std::filesystem::create_symlink("/dev/full", logs / "rank_1.log");
  const std::string lost =
      "cannot write the log file " + (logs / "rank_1.log").string() + ": No space left on device";
  // The training goes on: what ranks print after the warning is seen.
  Program program({"sh", "-c",
                   LOCKSTEP_PROGRAM " run -n 2 --log-dir " + logs.string() +
                       " sh -c 'echo one; until test -e $TMPDIR/go; do sleep 0.01; done; "
                       "echo two' 2>&1"});
  program.wait_for("lockstep: warning: " + lost);
  std::ofstream(tmpdir.path() / "go");
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.out(),
              AllOf(HasSubstr("[rank 1] two\n"), HasSubstr("\nlockstep run: " + lost + "\n")));
  std::stringstream log;
  log << std::ifstream(logs / "rank_0.log").rdbuf();
  EXPECT_EQ(log.str(), "one\ntwo\n");
  remove_folder(logs);
  std::filesystem::remove(tmpdir.path() / "go");
}

// By a limit on the size of files, whose signal must not end the launcher.
TEST_F(Run, ALogThatMayNotGrowIsAFailure) {
  const std::filesystem::path logs = tmpdir.path() / "logs";
  Program program({"sh", "-c",
                   "ulimit -f 8; exec " LOCKSTEP_PROGRAM " run --log-dir " + logs.string() +
                       " sh -c 'seq 1 5000; echo the end'"});
  EXPECT_EQ(program.wait(), 1);
  EXPECT_THAT(program.out(), HasSubstr("[rank 0] the end\n"));
  EXPECT_THAT(program.err(), HasSubstr("cannot write the log file " +
                                       (logs / "rank_0.log").string() + ": File too large"));
  remove_folder(logs);
}

TEST_F(Run, RunsInsideARank) {
  const Ended ended = run({"-n", "2", LOCKSTEP_PROGRAM, "run", "-n", "2", "sh", "-c", "echo hi"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(sorted_lines(ended.out), ElementsAre("[rank 0] [rank 0] hi", "[rank 0] [rank 1] hi",
                                                   "[rank 1] [rank 0] hi", "[rank 1] [rank 1] hi"));
}

TEST_F(Run, SurvivesClosedStandardStreams) {
  Program program({"sh", "-c", LOCKSTEP_PROGRAM " run -n 2 echo hi <&- >&-"});
  EXPECT_EQ(program.wait(), 0);
}

}  // namespace
}  // namespace lockstep
