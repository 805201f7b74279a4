// SPDX-License-Identifier: BSD-3-Clause
// The lockstep program itself: its subcommands and its help.
#include <filesystem>
#include <fstream>

#include "support/private_tmpdir.h"
#include "support/program.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Program;
using ::testing::StartsWith;

TEST(Lockstep, KnowsItsVerbs) {
  Program version({LOCKSTEP_PROGRAM, "--version"});
  EXPECT_EQ(version.wait(), 0);
  EXPECT_THAT(version.out(), StartsWith("lockstep "));
  Program help({LOCKSTEP_PROGRAM, "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(), AllOf(HasSubstr("run"), HasSubstr("train"), HasSubstr("compare"),
                                HasSubstr("bench"), HasSubstr("doctor"), HasSubstr("checkpoint")));
  Program wrong({LOCKSTEP_PROGRAM, "fly"});
  EXPECT_EQ(wrong.wait(), 2);
  EXPECT_THAT(wrong.err(), HasSubstr("no subcommand fly"));
  Program unhelped({LOCKSTEP_PROGRAM, "help", "trian"});
  EXPECT_EQ(unhelped.wait(), 2);
  EXPECT_THAT(unhelped.err(), HasSubstr("there is no subcommand trian; did you mean train?"));
}

TEST(Lockstep, AnAnswerThatIsLostIsAFailure) {
  for (const std::string question : {"--version", "--help", "run --help"}) {
    Program program({"sh", "-c", LOCKSTEP_PROGRAM " " + question + " >/dev/full"});
    EXPECT_EQ(program.wait(), 1) << question;
    EXPECT_EQ(program.err(), "lockstep: cannot write standard output: No space left on device\n");
  }
}

TEST(Lockstep, AComplaintThatIsLostLeavesItsExitCode) {
  for (const std::string command : {"nonsense", "run -n none true", "run"}) {
    Program program({"sh", "-c", LOCKSTEP_PROGRAM " " + command + " 2>/dev/full"});
    EXPECT_EQ(program.wait(), 2) << command;
  }
}

TEST(Lockstep, HandsVerbsToTheProgramBesideIt) {
  const testing::PrivateTmpdir folder;
  const std::string copy = folder.path() / "lockstep";
  std::filesystem::copy_file(LOCKSTEP_PROGRAM, copy);
  Program missing({copy, "train", "mlp"});
  EXPECT_EQ(missing.wait(), 1);
  EXPECT_THAT(missing.err(), HasSubstr(copy + "-torch: No such file"));
  std::ofstream(copy + "-torch") << "#!/bin/sh\necho \"$@\"\nexit 5\n";
  std::filesystem::permissions(copy + "-torch", std::filesystem::perms::owner_all);
  Program there({copy, "train", "mlp", "--ranks", "2"});
  EXPECT_EQ(there.wait(), 5);
  EXPECT_EQ(there.out(), "train mlp --ranks 2\n");
}

}  // namespace
}  // namespace lockstep
