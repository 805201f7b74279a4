// SPDX-License-Identifier: BSD-3-Clause
// Which rank the launcher names as the cause, for each way in which a rank can end.
#include "support/free_port.h"
#include "support/private_tmpdir.h"
#include "support/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Program;
using Words = std::vector<std::string>;

struct Case {
  std::string backend;
  std::string how;
  int exit_code;
  // What the report says of rank 1 after "failed first: ".
  std::string cause;
  // What it says later on; empty where the others may be ended before they have said anything.
  std::string also = "";
};

void PrintTo(const Case& test, std::ostream* stream) {
  *stream << test.backend << "_" << test.how;
}

class Culprit : public ::testing::TestWithParam<Case> {
 protected:
  const testing::PrivateTmpdir tmpdir_;
};

TEST_P(Culprit, IsTheRankThatEndsByItself) {
  const Case& test = GetParam();
  Program job({LOCKSTEP_PROGRAM, "run", "-n", "3", ENDING_RANK, test.backend, "1", test.how});
  EXPECT_EQ(job.wait(), test.exit_code);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("lockstep run: rank 1 of 3 (pid "),
                               HasSubstr(") failed first: " + test.cause), HasSubstr(test.also)));
}

const std::string kDied = "died before it made or finished this call";
// Over a network, the end of the connection may be noticed first.
const std::string kGone = " before it made or finished this call";

std::vector<Case> cases() {
  return {
      {"shm", "throw_slowly", 1,
       "exit code 1\nthe last lines of rank 1:\n  ending by throw_slowly"},
      {"shm", "throw_two_groups", 1, "exit code 1", "my own fault"},
      {"shm", "kept", 4, "exit code 4"},
      {"shm", "exit0", 1, "ended with code 0 before the others; rank ", kDied},
      {"shm", "swallowed", 1, "exit code 1", "my own fault"},
      {"shm", "before_joining", 1, "exit code 1", "my own fault"},
      {"shm", "stop", 1, "stopped by signal 19 (SIGSTOP); rank ", " s for rank 1"},
      {"gloo", "throw_slowly", 1, "exit code 1", "my own fault"},
      {"gloo", "exit0", 1, "ended with code 0 before the others; rank ", kGone},
      {"hosts", "throw_slowly", 1, "exit code 1", "my own fault"},
      {"hosts", "stop", 1, "stopped by signal 19 (SIGSTOP); rank ", " s for rank 1"},
  };
}

INSTANTIATE_TEST_SUITE_P(Run, Culprit, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return ::testing::PrintToString(info.param); });

// Each agent sees two ranks of four.
TEST(CulpritOfAnotherMachine, IsNamedByAllAgents) {
  const testing::PrivateTmpdir tmpdir;
  const std::string endpoint = "localhost:" + std::to_string(testing::free_port());
  const auto command = [&](int node) {
    return Words{LOCKSTEP_PROGRAM,
                 "run",
                 "-n",
                 "2",
                 "--nnodes",
                 "2",
                 "--node-rank",
                 std::to_string(node),
                 "--rdzv-endpoint",
                 endpoint,
                 ENDING_RANK,
                 "hosts",
                 "3",
                 "throw_slowly"};
  };
  Program first(command(0));
  Program second(command(1));
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(second.wait(), 1);
  EXPECT_THAT(first.err(), HasSubstr("rank 3 of 4, on another machine, failed first: rank "));
  EXPECT_THAT(second.err(), HasSubstr("failed first: exit code 1\nthe last lines of rank 3:"));
}

TEST(CulpritOfSpawn, HasItsExceptionReported) {
  Program job({ENDING_RANK, "shm", "2", "throw_slowly", "3"});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.err(), AllOf(HasSubstr("spawn(3): rank 2 (pid "),
                               HasSubstr("failed first: my own fault\nin two lines")));
}

}  // namespace
}  // namespace lockstep
