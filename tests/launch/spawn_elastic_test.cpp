// SPDX-License-Identifier: BSD-3-Clause
// spawn() of elastic jobs: what it returns, throws and tells, and which ranks it replaces.
// Trainings are in tests/train/elastic_training_test.cpp.
#include <csignal>
#include <string>
#include <vector>

#include "support/marked_processes.h"
#include "support/private_tmpdir.h"
#include "support/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/launch/spawn.h"

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
using ::testing::ThrowsMessage;

class SpawnElastic : public ::testing::Test {
 protected:
  ~SpawnElastic() override { EXPECT_THAT(tmpdir.entries(), IsEmpty()); }

  static Ended run(const std::vector<std::string>& arguments) {
    std::vector<std::string> command{LOCKSTEP_SPAWNING_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Ended ended = testing::run_to_end(command);
    ended.err = testing::without_oversubscription_warning(ended.err);
    return ended;
  }

  const testing::MarkedProcesses marked;
  const testing::PrivateTmpdir tmpdir;
};

constexpr const char* kMethods[] = {"fork", "spawn"};

TEST_F(SpawnElastic, ReturnsTheResultsOfTheRanksThatFinished) {
  for (const char* const method : kMethods) {
    const Ended ended = run({"elastic", method});
    EXPECT_EQ(ended.code, 0) << method << ended.err;
    EXPECT_EQ(ended.err, "") << "events go to on_event";
    EXPECT_THAT(
        ended.out,
        MatchesRegex("event: member 1 \\(rank 1, pid [0-9]+\\) was lost: killed by signal 9 "
                     ".*; (2 ranks go|1 rank goes) on \\(generation 1\\), and no replacement is "
                     "left\n"
                     "returned 0 2\n"));
  }
}

TEST_F(SpawnElastic, ACrashLoopThrowsWithTheRanksThatWereLostFromTheFirstOn) {
  for (const char* const method : kMethods) {
    const Ended ended = run({"elastic_crash_loop", method});
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.err,
                MatchesRegex("spawn\\(2\\): the job cannot go on without rank 0 of 1 \\(pid [0-9]+"
                             "\\): no data for the last one\n"
                             "before that:\n"
                             "  member 1 \\(rank 1, pid [0-9]+\\) was lost: no data for 1\n"
                             "  member 2 \\(a newcomer, pid [0-9]+\\) was lost: no data for 2\n"
                             "  member 3 \\(a newcomer, pid [0-9]+\\) was lost: no data for 3\n"
                             "exit code 1, signal 0\n"));
  }
}

TEST_F(SpawnElastic, AUsageErrorEndsTheJobAtOnce) {
  for (const char* const method : kMethods) {
    const Ended ended = run({"elastic_mistake", method});
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.err, AllOf(HasSubstr("the job cannot go on without rank 1 of 2 (pid "),
                                 HasSubstr("there is no such model\nexit code 2, signal 0\n"),
                                 Not(HasSubstr("is started"))));
  }
}

TEST_F(SpawnElastic, AForkedReplacementHasTheFilesOfItsParent) {
  const Ended ended = run({"elastic_files"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  for (const char* const line :
       {"[member 0] 0 has what was opened before\n", "[member 2] 2 has what was opened before\n"}) {
    EXPECT_THAT(ended.out, HasSubstr(line));
  }
}

TEST_F(SpawnElastic, AReplacementThatIsLateIsLost) {
  const Ended ended = run({"elastic_absence", "late"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, ::testing::ContainsRegex(
                             "event: member 2 \\(a newcomer, pid [0-9]+\\) was lost: it did "
                             "not come to this call within 8.0 s of its start; .*, and no "
                             "replacement is left\n"));
}

TEST_F(SpawnElastic, AReplacementThatDoesNotComeToTheCallIsNamed) {
  const Ended ended = run({"elastic_absence", "never"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              ::testing::ContainsRegex("event: member 2 \\(a newcomer, pid [0-9]+\\) ended "
                                       "with code 0 before it joined, and is not replaced; "
                                       "1 rank goes on\n"));
}

TEST_F(SpawnElastic, RanksOfARankAreNoMembers) {
  const Ended ended = run({"elastic_nested"});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("true spawn(1): this process is a rank of an elastic job, and "
                                   "cannot have one of its own; leave out SpawnOptions::elastic"));
}

TEST_F(SpawnElastic, RanksDieWithTheirCaller) {
  for (const char* const method : kMethods) {
    Program program({LOCKSTEP_SPAWNING_PROGRAM, "elastic_waits", method});
    program.wait_for("[member 2] pid ");
    program.signal(SIGKILL);
    program.wait();
    EXPECT_TRUE(eventually([&] { return tmpdir.entries().empty(); })) << "the keeper removes it";
  }
}

TEST_F(SpawnElastic, OptionsMustMakeSense) {
  const auto refused = [](const ElasticOptions& elastic, const std::string& why) {
    EXPECT_THAT([&] { spawn(2, [](int) {}, {.elastic = elastic}); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("spawn(2): "), HasSubstr(why))));
  };
  refused({.least = 3},
          "elastic.least is 3 and elastic.most 1; the least number of ranks is from 1 "
          "to the 2 of this call");
  refused({.least = 0}, "elastic.least is 0");
  refused({.most = 5000}, "and the greatest one at most 4096");
  refused({.replacements = -1}, "elastic.replacements is -1");
  refused({.hang_timeout = std::chrono::milliseconds(-1)}, "elastic.hang_timeout -1 ms");
}

}  // namespace
}  // namespace lockstep
