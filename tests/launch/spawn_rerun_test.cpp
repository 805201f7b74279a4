// SPDX-License-Identifier: BSD-3-Clause
// spawn() whose ranks are new processes of the same program.
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include "support/program.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include "lockstep/core/process/cpu.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using testing::Program;
using testing::sorted_lines;
using ::testing::StartsWith;

class SpawnRerun : public ::testing::Test {
 protected:
  ~SpawnRerun() override { EXPECT_THAT(tmpdir.entries(), IsEmpty()); }

  // What the program printed, if it ended as it should.
  static std::string output_of(const std::vector<std::string>& arguments) {
    std::vector<std::string> command{LOCKSTEP_SPAWNING_PROGRAM};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Program program(command);
    EXPECT_EQ(program.wait(), 0) << program.err();
    return program.out();
  }

  static std::string error_of(const std::string& way) {
    Program program({LOCKSTEP_SPAWNING_PROGRAM, way});
    EXPECT_EQ(program.wait(), 1) << program.out();
    return program.err();
  }

  // Without what ranks print on their way to the call.
  static std::vector<std::string> lines_of_main(const std::string& output) {
    std::vector<std::string> lines;
    std::istringstream text(output);
    for (std::string line; std::getline(text, line);) {
      if (!line.starts_with("[rank ")) lines.push_back(line);
    }
    return lines;
  }

  const testing::PrivateTmpdir tmpdir;
};

TEST_F(SpawnRerun, RunsMainAgainWithItsArgumentsAndReturnsResults) {
  EXPECT_THAT(sorted_lines(output_of({"results", "a b", ""})),
              ElementsAre("0 1.5 1000000", "[rank 0] main of results|a b|",
                          "[rank 0] main of results|a b|", "[rank 0] main of results|a b|",
                          "[rank 1] main of results|a b|", "[rank 1] main of results|a b|",
                          "[rank 1] main of results|a b|", "main of results|a b|"));
}

TEST_F(SpawnRerun, IsChosenForAProcessWithThreads) {
  EXPECT_EQ(output_of({"threads"}), "10 11\n");
}

// Here, where each test has a process in which nothing has warned yet.
TEST_F(SpawnRerun, MoreRanksThanCoresAreAWarningOnce) {
  Program program({LOCKSTEP_SPAWNING_PROGRAM, "oversubscribes"});
  EXPECT_EQ(program.wait(), 0);
  const int cores = std::min(2, available_cores());
  EXPECT_THAT(program.err(),
              MatchesRegex(fmt::format("0 more\nwarning: {} ranks share {} cores? and take turns, "
                                       "[^\n]*start at most {} on this machine[^\n]*\n1 more\n2 "
                                       "more\n",
                                       cores + 1, cores, cores)));
}

TEST_F(SpawnRerun, EarlierCallsEndInARankAsTheyEndedInItsParent) {
  EXPECT_THAT(output_of({"earlier_calls"}),
              AllOf(StartsWith("the same:\n"), HasSubstr("spawn(2): rank 1 (pid "),
                    HasSubstr("a last line"), HasSubstr("0 ranks were asked for")));
}

TEST_F(SpawnRerun, NamesTheRankAndWhatItsExceptionSaid) {
  const std::string error = error_of("throws");
  EXPECT_THAT(error, AllOf(HasSubstr("spawn(3): rank 1 (pid "), HasSubstr("no more data")));
}

TEST_F(SpawnRerun, OnlyForkWorksInARank) {
  const auto lines = lines_of_main(output_of({"nested"}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "1 21");
  for (const std::size_t method : {1, 2}) {
    EXPECT_THAT(lines[method],
                AllOf(HasSubstr("cannot run this program again"), HasSubstr("is a rank itself"),
                      HasSubstr("StartMethod::fork")));
  }
}

TEST_F(SpawnRerun, RefusesAProcessThatMainHasForked) {
  EXPECT_THAT(output_of({"forked"}), HasSubstr("was forked from the program's"));
}

TEST_F(SpawnRerun, TheRankIsARankFromTheCallOn) {
  std::filesystem::create_directory(tmpdir.path() / "folder");
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(tmpdir.path());
  ::setenv("SEARCHED", "some", 1);
  ::unsetenv("OMP_NUM_THREADS");
  const auto lines = lines_of_main(output_of({"environments"}));
  std::filesystem::current_path(before);
  std::filesystem::remove(tmpdir.path() / "folder");
  ASSERT_EQ(lines.size(), 3u);
  const std::string& parent = lines[0];
  EXPECT_THAT(parent,
              AllOf(StartsWith("RANK= OMP= cores="), HasSubstr("SEARCHED=some:more folder")));
  const auto known = [&](std::string line) { return line.substr(0, line.rfind(' ')); };
  EXPECT_EQ(known(lines[1]), known(parent)) << "main has found another machine than its parent's";
  EXPECT_THAT(lines[1], ::testing::EndsWith(" rank"));
  EXPECT_THAT(lines[2], AllOf(::testing::Not(HasSubstr("RANK= ")), HasSubstr(" OMP=1 "),
                              HasSubstr("SEARCHED=some:more folder rank")));
}

TEST_F(SpawnRerun, NamesAProgramThatMakesAnotherCall) {
  EXPECT_THAT(error_of("another_call"),
              AllOf(HasSubstr("calls spawn(3)"), HasSubstr("its parent called spawn(2)"),
                    HasSubstr("must be the same in each rank")));
}

TEST_F(SpawnRerun, NamesAProgramThatDoesNotComeToTheCall) {
  EXPECT_THAT(error_of("no_call"),
              AllOf(ContainsRegex("rank [01] \\(pid "), HasSubstr("exit code 0"),
                    HasSubstr("did not come to this call")));
}

// The others may wait for it for as long as they like.
TEST_F(SpawnRerun, ARankThatEndsBeforeTheCallIsNamedWhileOthersWaitInIt) {
  EXPECT_THAT(error_of("no_call_of_rank_1"),
              AllOf(HasSubstr("rank 1 (pid "), HasSubstr("exit code 0"),
                    HasSubstr("did not come to this call"), HasSubstr("\nexit code 0, signal 0")));
}

TEST_F(SpawnRerun, ARankThatWaitsBeforeTheCallIsNamedAndEnded) {
  EXPECT_THAT(error_of("waits_before"),
              AllOf(HasSubstr("rank 0 (pid "), HasSubstr("did not come to this call within 0.2 s"),
                    HasSubstr("start_timeout"), HasSubstr("\nexit code 1, signal 0")));
}

TEST_F(SpawnRerun, ARankHasTheArgumentsThatTheProgramWasGiven) {
  EXPECT_EQ(output_of({"overwrites_its_name"}), "the same\n");
}

// As when it is compiled again meanwhile.
TEST_F(SpawnRerun, WorksWithoutTheProgramsFile) {
  const auto copy = tmpdir.path() / "copy";
  std::filesystem::copy_file(LOCKSTEP_SPAWNING_PROGRAM, copy);
  Program program({copy, "removed"});
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_EQ(program.out(), "0 1\n");
}

std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word == "pid" && words >> word) pids.push_back(std::stoi(word));
  }
  return pids;
}

bool all_gone(const std::vector<pid_t>& pids) {
  return std::ranges::all_of(pids, [](pid_t pid) { return ::kill(pid, 0) != 0; });
}

TEST_F(SpawnRerun, ASignalEndsTheRanksAndThenTheCaller) {
  Program program({LOCKSTEP_SPAWNING_PROGRAM, "waits"});
  program.wait_for("pid ", 2);
  program.signal(SIGINT);
  EXPECT_EQ(program.wait(), 128 + SIGINT);
  EXPECT_TRUE(all_gone(pids_in(program.out())));
}

TEST_F(SpawnRerun, RanksDieWithTheirCaller) {
  Program program({LOCKSTEP_SPAWNING_PROGRAM, "waits"});
  program.wait_for("pid ", 2);
  program.signal(SIGKILL);
  program.wait();
  EXPECT_TRUE(eventually([&] { return all_gone(pids_in(program.out())); }));
  EXPECT_TRUE(eventually([&] { return tmpdir.entries().empty(); })) << "the keeper removes it";
}

}  // namespace
}  // namespace lockstep
