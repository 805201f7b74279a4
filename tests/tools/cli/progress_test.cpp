// SPDX-License-Identifier: BSD-3-Clause
// The progress bar of `lockstep train` and `compare` on a terminal, and plain lines elsewhere.
#include <algorithm>

#include "support/program.h"
#include "tests/tools/cli/screen.h"
#include <gmock/gmock.h>
#include <signal.h>

namespace lockstep {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::Program;
using testing::screen_of;
using ::testing::SizeIs;
using ::testing::StartsWith;

std::vector<std::string> linear(const std::string& ranks, const std::string& epochs,
                                std::vector<std::string> environment = {"TERM=xterm"}) {
  environment.insert(environment.begin(), {"env", "-u", "NO_COLOR"});
  environment.insert(environment.end(), {LOCKSTEP_PROGRAM, "train", "linear", "--device", "cpu",
                                         "--ranks", ranks, "--epochs", epochs});
  return environment;
}

class ProgressOnTerminal : public ::testing::TestWithParam<const char*> {};

// Each finished line is one of the training's, without a trace of the bar.
void expect_plain_lines(std::vector<std::string> lines) {
  EXPECT_EQ(lines.back(), "");
  lines.pop_back();
  EXPECT_THAT(lines, Each(AnyOf(StartsWith("linear: 2 parameters"), HasSubstr(": mean loss "),
                                StartsWith("learned weight"), HasSubstr("The load exceeds"))));
  for (const auto& line : lines) EXPECT_THAT(line, Not(HasSubstr("samples/s")));
}

TEST_P(ProgressOnTerminal, RedrawsOneLineBelowTheOutputAndRemovesIt) {
  Program program(linear(GetParam(), "20"), Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.err();
  const auto screen = screen_of(program.out());
  EXPECT_EQ(screen.fault, "");
  EXPECT_TRUE(screen.colours);
  expect_plain_lines(screen.lines);
  const bool loaded = std::ranges::any_of(screen.lines, [](const std::string& line) {
    return line.find("The load exceeds") != std::string::npos;
  });
  EXPECT_THAT(screen.lines, SizeIs(1 + 20 + (loaded ? 1 : 0) + 1 + 1));
  ASSERT_THAT(screen.redrawn, Not(IsEmpty()));
  EXPECT_THAT(screen.redrawn, Each(StartsWith("epoch ")));
  EXPECT_THAT(screen.redrawn, Contains(HasSubstr(" samples/s, ")));
  for (const auto& line : screen.redrawn) EXPECT_LT(line.size(), 80u) << line;
  EXPECT_THAT(program.err(), Not(HasSubstr("\033")));
}

TEST_P(ProgressOnTerminal, FollowsTheTerminalsWidth) {
  Program program(linear(GetParam(), "1000000"), Program::Output::terminal);
  program.resize(120);
  program.wait_for(" left\033[J", 5);
  program.resize(40);
  const auto before = program.out().size();
  program.wait_for("epoch ", testing::occurrences(program.out(), "epoch ") + 200);
  program.signal(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  const auto wide = screen_of(program.out().substr(0, before));
  EXPECT_THAT(wide.redrawn, Contains(SizeIs(::testing::Gt(60u))));
  // Some of the wide ones may still have been on their way.
  const auto narrow = screen_of(program.out().substr(before + 4096)).redrawn;
  ASSERT_THAT(narrow, Not(IsEmpty()));
  // The first may have lost its beginning.
  EXPECT_THAT(std::vector(narrow.begin() + 1, narrow.end()), Each(SizeIs(::testing::Le(39u))));
  const auto lines = screen_of(program.out()).lines;
  expect_plain_lines({lines.begin(), lines.end()});
}

TEST_P(ProgressOnTerminal, HasNoColourIfTheUserWantsNone) {
  Program program(linear(GetParam(), "10", {"TERM=xterm", "NO_COLOR=1"}),
                  Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.err();
  const auto screen = screen_of(program.out());
  EXPECT_FALSE(screen.colours);
  EXPECT_THAT(screen.redrawn, Not(IsEmpty()));
}

TEST_P(ProgressOnTerminal, IsPlainLinesOnADumbTerminalAndInPipes) {
  Program dumb(linear(GetParam(), "1", {"TERM=dumb"}), Program::Output::terminal);
  Program pipe(linear(GetParam(), "1"));
  for (Program* program : {&dumb, &pipe}) {
    EXPECT_EQ(program->wait(), 0) << program->err();
    EXPECT_THAT(program->out(), Not(HasSubstr("\033")));
    EXPECT_THAT(program->out(), Not(HasSubstr("\r")));
    EXPECT_THAT(program->out(), HasSubstr("epoch 1/1, step 100/"));
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProgressOnTerminal, ::testing::Values("1", "2"));

TEST(ProgressOfRanks, EndsBeforeTheLineOfItsEpoch) {
  Program program(linear("2", "20"), Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.err();
  const std::string& out = program.out();
  for (int epoch = 1; epoch <= 20; ++epoch) {
    const std::string name = "epoch " + std::to_string(epoch) + "/20";
    const std::size_t line = out.find(name + ": mean loss");
    ASSERT_NE(line, std::string::npos) << name;
    EXPECT_EQ(out.find(name + " ", line), std::string::npos) << name;
  }
}

TEST(ProgressOfALauncher, IsPlainLines) {
  Program program({"env", "TERM=xterm", LOCKSTEP_PROGRAM, "run", "-n", "2", LOCKSTEP_PROGRAM,
                   "train", "linear", "--device", "cpu", "--epochs", "1"},
                  Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.err();
  EXPECT_THAT(screen_of(program.out()).redrawn, IsEmpty());
  EXPECT_THAT(program.out(), HasSubstr("epoch 1/1, step 100/"));
}

// Its progress goes to standard error.
TEST(ProgressOfCompare, NamesTheTraining) {
  Program program(
      {"sh", "-c", "env -u NO_COLOR TERM=xterm \"$@\" 2>&1 >/dev/null", "sh", LOCKSTEP_PROGRAM,
       "compare", "linear", "--device", "cpu", "--ranks", "2", "--epochs", "2"},
      Program::Output::terminal);
  program.resize(140);
  EXPECT_EQ(program.wait(), 0) << program.out();
  const auto screen = screen_of(program.out());
  EXPECT_EQ(screen.fault, "");
  EXPECT_THAT(screen.redrawn, Contains(StartsWith("[single, 1 thread, global batch 64] epoch ")));
  EXPECT_THAT(screen.redrawn, Contains(StartsWith("[ddp, 2 ranks")));
  for (const auto& line : screen.lines) EXPECT_THAT(line, Not(HasSubstr("samples/s, ")));
}

TEST(ProgressOfBench, CountsMeasurements) {
  Program program({"env", "-u", "NO_COLOR", "TERM=xterm", LOCKSTEP_PROGRAM, "bench", "all-reduce",
                   "--ranks", "2", "--sizes", "1KiB,4KiB"},
                  Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.out() << program.err();
  const auto screen = screen_of(program.out());
  EXPECT_EQ(screen.fault, "");
  EXPECT_THAT(screen.redrawn, Contains(HasSubstr(" 1/2, ")));
  EXPECT_THAT(screen.redrawn, Each(Not(HasSubstr(" 0/2, "))));
  EXPECT_EQ(screen.lines.back(), "");
  for (const auto& line : screen.lines) EXPECT_THAT(line, Not(HasSubstr(" left")));
}

TEST(ProgressOfBench, StaysOutOfALaunchersLogFiles) {
  Program program({"sh", "-c",
                   "logs=$(mktemp -d) && TERM=xterm \"$0\" run -n 1 --log-dir \"$logs\" \"$0\" "
                   "bench all-reduce --ranks 2 --sizes 1KiB,4KiB && cat \"$logs\"/rank_0.log && "
                   "rm -r \"$logs\"",
                   LOCKSTEP_PROGRAM},
                  Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.out() << program.err();
  EXPECT_EQ(testing::occurrences(program.out(), "     4096 "), 2u) << program.out();
  EXPECT_THAT(program.out(), Not(HasSubstr("\033[J")));
}

}  // namespace
}  // namespace lockstep
