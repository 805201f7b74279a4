// SPDX-License-Identifier: BSD-3-Clause
// `lockstep run --elastic`: which ranks go on when others end or hang, who replaces them, and what
// ends the job. The program is tests/support/elastic_member.cpp.
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/tools/cli/run_fixture.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include "lockstep/core/file/remove_folder.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::Ended;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using testing::occurrences;
using testing::Program;

class RunElastic : public Run {
 protected:
  ~RunElastic() override {
    for (const std::string& file : files_) std::filesystem::remove(tmpdir.path() / file);
  }

  // Standard error comes with the output, so that a test can wait for the launcher's lines.
  std::vector<std::string> job(const std::string& limits, int ranks,
                               const std::vector<std::string>& more = {},
                               const std::string& how = "") const {
    std::vector<std::string> arguments{"-n", std::to_string(ranks), "--elastic", limits};
    arguments.insert(arguments.end(), more.begin(), more.end());
    arguments.insert(arguments.end(), {ELASTIC_MEMBER, how});
    std::vector<std::string> merged{"sh", "-c", "exec \"$@\" 2>&1", "sh"};
    const std::vector<std::string> launch = command(arguments);
    merged.insert(merged.end(), launch.begin(), launch.end());
    return merged;
  }

  // Tells the members, who look for the file.
  void make_file(const std::string& name) {
    std::ofstream(tmpdir.path() / name);
    files_.push_back(name);
  }

  std::vector<pid_t> processes_of(int member) const {
    return testing::processes_with(
        {"LOCKSTEP_TEST_MARK=" + mark, fmt::format("LOCKSTEP_MEMBER={}", member)});
  }

  void signal(int member, int signal) const {
    const auto found = processes_of(member);
    ASSERT_EQ(found.size(), 1u) << "member " << member;
    ::kill(found.front(), signal);
  }

  static Ended resize(const std::string& job, int ranks) {
    return testing::run_to_end({LOCKSTEP_PROGRAM, "resize", job, std::to_string(ranks)});
  }
  static Ended resize(const Program& program, int ranks) {
    return resize(std::to_string(program.pid()), ranks);
  }
  static void expect_refused(const Ended& asked, const std::string& why) {
    EXPECT_EQ(asked.code, 2);
    EXPECT_THAT(asked.err, AllOf(HasSubstr("lockstep resize: job "), HasSubstr(why)));
  }

  // Until all members of the generation train.
  static void wait_for(Program& program, int generation, int size) {
    for (int rank = 0; rank < size; ++rank) {
      program.wait_for(fmt::format("generation {}: rank {} of {} goes on", generation, rank, size));
    }
  }

  void expect_to_finish(Program& program) {
    make_file("finish");
    EXPECT_EQ(program.wait(), 0) << program.out();
  }

 private:
  std::vector<std::string> files_;
};

TEST_F(RunElastic, TheOthersGoOnAndTheLostRankIsReplaced) {
  for (const int lost : {0, 1, 2}) {
    Program program(job("1:3", 3));
    wait_for(program, 0, 3);
    signal(lost, SIGKILL);
    wait_for(program, 1, 2);
    wait_for(program, 2, 3);
    expect_to_finish(program);
    std::filesystem::remove(tmpdir.path() / "finish");
    EXPECT_EQ(occurrences(program.out(), "finished after generation 2"), 3);
    EXPECT_THAT(program.out(),
                HasSubstr(fmt::format("lockstep: member {} (rank {}, pid ", lost, lost)));
    EXPECT_THAT(program.out(), HasSubstr("killed by signal 9 (SIGKILL)"));
    EXPECT_THAT(program.out(), HasSubstr("; 2 ranks go on (generation 1), member 3 is started\n"));
    EXPECT_THAT(program.out(),
                HasSubstr("lockstep: member 3 joins as rank 2 of 3 (generation 2)\n"));
  }
}

TEST_F(RunElastic, NobodyStartsAnew) {
  Program program(job("1:2", 2));
  program.wait_for("first step done", 2);
  signal(0, SIGKILL);
  wait_for(program, 2, 2);
  expect_to_finish(program);
  EXPECT_EQ(occurrences(program.out(), "goes on at step 0\n"), 2) << "the founders' first lines";
}

TEST_F(RunElastic, TwoRanksMayBeLostAtOnce) {
  Program program(job("1:3", 3));
  wait_for(program, 0, 3);
  signal(0, SIGKILL);
  signal(2, SIGSEGV);
  program.wait_for("lockstep: member 3 joins as rank ");
  program.wait_for("lockstep: member 4 joins as rank ");
  expect_to_finish(program);
  EXPECT_EQ(occurrences(program.out(), "was lost"), 2);
}

TEST_F(RunElastic, ANewcomerMayBeLostBeforeItJoins) {
  Program program(job("1:2", 2, {}, "lobby"));
  wait_for(program, 0, 2);
  signal(1, SIGKILL);
  program.wait_for("in the lobby");
  signal(2, SIGKILL);
  program.wait_for("in the lobby", 2);
  make_file("join");
  wait_for(program, 2, 2);
  expect_to_finish(program);
  EXPECT_THAT(program.out(), HasSubstr("member 2 (a newcomer, pid "));
  EXPECT_THAT(program.out(), HasSubstr("; 1 rank goes on (generation 1), member 3 is started\n"));
}

TEST_F(RunElastic, AStoppedRankIsKilledAndReplaced) {
  Program program(job("1:3", 3, {"--hang-timeout", "8"}));
  wait_for(program, 0, 3);
  signal(1, SIGSTOP);
  wait_for(program, 2, 3);
  expect_to_finish(program);
  EXPECT_THAT(
      program.out(),
      MatchesRegex("(.*\n)*lockstep: member 1 \\(rank 1, pid [0-9]+\\) was lost: killed by "
                   "the launcher, since it made no progress for 8.0 s; 2 ranks go on(.*\n)*"));
}

TEST_F(RunElastic, ANewcomerThatHangsBeforeItJoinsIsKilledAndReplaced) {
  Program program(job("1:2", 2, {"--hang-timeout", "8"}, "lobby"));
  wait_for(program, 0, 2);
  signal(1, SIGKILL);
  program.wait_for("lockstep: member 2 (a newcomer, pid ");
  make_file("join");
  wait_for(program, 2, 2);
  expect_to_finish(program);
  EXPECT_THAT(program.out(),
              HasSubstr("was lost: killed by the launcher, since it had not joined within "));
}

TEST_F(RunElastic, ARankThatHangsInItsPartOfAStepIsKilledAndReplaced) {
  Program program(job("1:3", 3, {"--hang-timeout", "8"}));
  wait_for(program, 0, 3);
  make_file("hang_1");
  wait_for(program, 2, 3);
  expect_to_finish(program);
  EXPECT_EQ(occurrences(program.out(), "was lost"), 1);
  EXPECT_THAT(program.out(), HasSubstr("lockstep: member 1 (rank 1, pid "));
}

TEST_F(RunElastic, ACrashLoopUsesUpTheReplacementsAndTheOthersGoOn) {
  Program program(job("1:2", 2, {"--max-restarts", "2"}, "3"));
  wait_for(program, 0, 2);
  signal(1, SIGKILL);
  program.wait_for(", and no replacement is left\n");
  expect_to_finish(program);
  EXPECT_EQ(occurrences(program.out(), "was lost: exit code 3"), 2);
  EXPECT_EQ(occurrences(program.out(), "finished after generation 1"), 1);
}

TEST_F(RunElastic, AReplacementThatEndsWithoutTrainingIsNamed) {
  Program program(job("1:2", 2, {}, "0"));
  wait_for(program, 0, 2);
  signal(1, SIGKILL);
  program.wait_for(" ended with code 0 before it joined, and is not replaced; 1 rank goes on\n");
  expect_to_finish(program);
  EXPECT_THAT(program.out(), HasSubstr("lockstep: member 2 (a newcomer, pid "));
}

TEST_F(RunElastic, TooFewRanksEndTheJob) {
  Program program(job("3:3", 3));
  wait_for(program, 0, 3);
  signal(1, SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_THAT(
      program.out(),
      MatchesRegex("(.*\n)*lockstep: member 1 \\(rank 1, pid [0-9]+\\) was lost: .*; the job "
                   "cannot go on\n(.*\n)*lockstep run: rank 1 of 3 \\(pid [0-9]+\\) failed "
                   "first: killed by signal 9 (.*\n)*"));
}

TEST_F(RunElastic, AWrongCommandIsNotRepeated) {
  Program program(job("1:2", 2, {}, "2"));
  wait_for(program, 0, 2);
  signal(1, SIGKILL);
  EXPECT_EQ(program.wait(), 2);
  EXPECT_THAT(program.out(), HasSubstr("exit code 2; the job cannot go on\n"));
  EXPECT_THAT(program.out(),
              MatchesRegex("(.*\n)*lockstep run: member 2 \\(pid [0-9]+\\) failed first: exit code "
                           "2\n(.*\n)*"));
}

TEST_F(RunElastic, ARankThatHasFinishedIsNotReplaced) {
  Program program(job("1:3", 3));
  wait_for(program, 0, 3);
  make_file("leave_1");
  program.wait_for("finished");
  ASSERT_TRUE(testing::eventually([&] { return processes_of(1).empty(); }));
  signal(0, SIGKILL);
  wait_for(program, 1, 1);
  expect_to_finish(program);
  EXPECT_EQ(occurrences(program.out(), "was lost"), 1);
  EXPECT_THAT(program.out(), Not(HasSubstr("is started")));
}

// Nobody repeats what it does after the training.
TEST_F(RunElastic, ARankThatFailsAfterTheTrainingFailsTheJob) {
  Program program(job("1:2", 2));
  wait_for(program, 0, 2);
  make_file("work");
  make_file("finish");
  program.wait_for("finished after generation 0", 2);
  signal(0, SIGKILL);
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_EQ(occurrences(program.out(), "was lost"), 1);
  EXPECT_THAT(program.out(), HasSubstr("; the job cannot go on\n"));
}

// The other one waits for it in vain.
TEST_F(RunElastic, ARankThatWorksAfterTheTrainingDoesNotHang) {
  Program program(job("1:2", 2, {"--hang-timeout", "8"}));
  wait_for(program, 0, 2);
  make_file("work");
  make_file("leave_1");
  EXPECT_EQ(program.wait(), 128 + SIGKILL);
  EXPECT_THAT(program.out(), HasSubstr("finished after generation 0"));
  EXPECT_EQ(occurrences(program.out(), "was lost"), 1);
  EXPECT_THAT(program.out(), HasSubstr("lockstep: member 0 (rank 0, pid "));
}

TEST_F(RunElastic, ANewcomerEndsWithTheTraining) {
  Program program(job("1:2", 2, {}, "lobby"));
  wait_for(program, 0, 2);
  signal(0, SIGKILL);
  program.wait_for("in the lobby");
  expect_to_finish(program);
  EXPECT_EQ(occurrences(program.out(), "finished"), 1);
}

TEST_F(RunElastic, GrowsWhenItIsAskedTo) {
  Program program(job("1:4", 2, {"--max-restarts", "1"}));
  wait_for(program, 0, 2);
  const Ended asked = resize(program, 4);
  EXPECT_EQ(asked.out, fmt::format("job {}: 4 ranks instead of 2: newcomers join at the end of a "
                                   "step\n",
                                   program.pid()))
      << asked.err;
  program.wait_for(": rank 3 of 4 goes on");
  // They are no replacements.
  signal(0, SIGKILL);
  program.wait_for("member 4 is started");
  program.wait_for(": rank 3 of 4 goes on", 2);
  expect_to_finish(program);
  EXPECT_THAT(program.out(), HasSubstr("lockstep: resized from 2 to 4 ranks: members 2, 3 are "
                                       "started\n"));
  EXPECT_EQ(occurrences(program.out(), "finished after generation"), 4);
}

TEST_F(RunElastic, ShrinksWhenItIsAskedTo) {
  Program program(job("1:4", 4, {"--max-restarts", "1"}));
  wait_for(program, 0, 4);
  const Ended asked = resize(program, 2);
  EXPECT_THAT(asked.out,
              HasSubstr("2 ranks instead of 4: the highest ranks leave at the end of a step"));
  program.wait_for("left after generation 0", 2);
  wait_for(program, 1, 2);
  EXPECT_TRUE(
      testing::eventually([&] { return processes_of(2).empty() && processes_of(3).empty(); }));
  // Nobody was lost, so the replacement is still there.
  signal(0, SIGKILL);
  program.wait_for("; 1 rank goes on (generation 2), member 4 is started\n");
  wait_for(program, 3, 2);
  expect_to_finish(program);
  EXPECT_THAT(
      program.out(),
      HasSubstr("lockstep: resized from 4 to 2 ranks: members 2, 3 leave (generation 1)\n"));
  EXPECT_EQ(occurrences(program.out(), "was lost"), 1);
  EXPECT_THAT(program.out(), Not(HasSubstr("failed as it left")));
}

TEST_F(RunElastic, GetsItsLostRanksBackWhenItIsAskedTo) {
  Program program(job("1:2", 2, {"--max-restarts", "0"}));
  wait_for(program, 0, 2);
  signal(0, SIGKILL);
  wait_for(program, 1, 1);
  EXPECT_THAT(resize(program, 2).out, HasSubstr("those that are missing are started"));
  wait_for(program, 2, 2);
  expect_to_finish(program);
}

TEST_F(RunElastic, AnswersAllWhoAskAtOnce) {
  Program program(job("1:4", 1));
  wait_for(program, 0, 1);
  program.signal(SIGSTOP);
  const std::string launcher = std::to_string(program.pid());
  Program one({LOCKSTEP_PROGRAM, "resize", launcher, "2"});
  Program other({LOCKSTEP_PROGRAM, "resize", launcher, "5"});
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // until both wait for the launcher
  program.signal(SIGCONT);
  EXPECT_EQ(one.wait(), 0);
  EXPECT_THAT(one.out(), HasSubstr("2 ranks instead of 1"));
  EXPECT_EQ(other.wait(), 2);
  EXPECT_THAT(other.err(), HasSubstr("5 is outside of --elastic 1:4"));
  program.wait_for(": rank 1 of 2 goes on");
  expect_to_finish(program);
}

// Its launcher is found by the name that its ranks know.
TEST_F(RunElastic, IsResizedByItsRunId) {
  Program program(job("1:2", 1, {"--max-restarts", "1"}));
  wait_for(program, 0, 1);
  std::ifstream environment(fmt::format("/proc/{}/environ", processes_of(0).at(0)));
  const std::string name = "TORCHELASTIC_RUN_ID=";
  std::string entry;
  while (!entry.starts_with(name)) ASSERT_TRUE(std::getline(environment, entry, '\0'));
  const std::string id = entry.substr(name.size());
  // A launcher that does not say its id at once is passed over.
  EXPECT_TRUE(testing::eventually([&] { return resize(id, 2).code == 0; }));
  wait_for(program, 1, 2);
  expect_to_finish(program);
}

TEST_F(RunElastic, IsNotResizedWithoutReason) {
  Program program(job("1:3", 2));
  wait_for(program, 0, 2);
  expect_refused(resize(program, 4), "4 is outside of --elastic 1:3; give a number from 1 to 3");
  EXPECT_THAT(resize(program, 2).out, HasSubstr("it is to have so many ranks already"));
  make_file("work");
  make_file("finish");
  program.wait_for("finished after generation 0", 2);
  expect_refused(resize(program, 3), "its training has ended, or is about to");
  std::filesystem::remove(tmpdir.path() / "work");
  const std::string launcher = std::to_string(program.pid());
  EXPECT_EQ(program.wait(), 0) << program.out();
  expect_refused(resize(launcher, 1), "there is no process");
  expect_refused(resize("nothing", 1), "this user has no elastic job of this name here");
  expect_refused(resize(std::to_string(::getpid()), 1), "has no ranks of a job");
}

TEST_F(RunElastic, OnlyElasticJobsOfThisUserAreResized) {
  Program fixed(command({"-n", "1", "sh", "-c", "echo here; exec sleep 60"}));
  fixed.wait_for("here");
  expect_refused(resize(fixed, 2), "it is not elastic; start it with --elastic MIN:MAX");
  fixed.signal(SIGTERM);
  EXPECT_EQ(fixed.wait(), 128 + SIGTERM);

  if (::geteuid() != 0) {
    expect_refused(resize("1", 2), "process 1 belongs to user 0");
    return;
  }
  Program other(
      {"setpriv", "--reuid=65534", "--clear-groups", "sh", "-c", "echo here; exec sleep 60"});
  other.wait_for("here");
  expect_refused(resize(other, 2), "belongs to user 65534, and this one to user 0");
  other.signal(SIGKILL);
  EXPECT_EQ(other.wait(), 128 + SIGKILL);
}

TEST_F(RunElastic, OptionsMustMakeSense) {
  for (const char* limits : {"3", "3:2", "0:2", "1:x", "3:3", "1:1"}) {
    const Ended ended = run({"-n", "2", "--elastic", limits, "true"});
    EXPECT_EQ(ended.code, 2) << limits;
    EXPECT_THAT(ended.err, HasSubstr(fmt::format("--elastic \"{}\": give the least", limits)));
  }
  EXPECT_EQ(run({"-n", "2", "--hang-timeout", "1", "true"}).code, 2);
}

TEST_F(RunElastic, MembersHaveNumbersInLinesAndLogFiles) {
  const std::filesystem::path logs = tmpdir.path() / "logs";
  Program program(job("1:1", 1, {"--log-dir", logs}));
  program.wait_for("[member 0] generation 0: rank 0 of 1 goes on");
  expect_to_finish(program);
  EXPECT_TRUE(std::filesystem::exists(logs / "member_0.log"));
  remove_folder(logs);
}

}  // namespace
}  // namespace lockstep
