// SPDX-License-Identifier: BSD-3-Clause
// The bar of a Trainer with .progress, which examples/trainer.cpp shows on a terminal.
#include <string>
#include <vector>

#include "support/program.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/cli/screen.h"

namespace lockstep::testing {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Runs the example in a folder of its own, with both outputs on a terminal of this kind.
std::string output_on(const std::string& terminal) {
  const TemporaryFolder folder;
  Program program({"sh", "-c", "cd \"$0\" && exec env -u NO_COLOR TERM=\"$1\" \"$2\" 2>&1",
                   folder.path(), terminal, TRAINER},
                  Program::Output::terminal);
  EXPECT_EQ(program.wait(), 0) << program.out();
  return program.out();
}

TEST(ProgressOfATrainer, IsBelowItsLinesAndDisappears) {
  Screen screen = screen_of(output_on("xterm"));
  EXPECT_EQ(screen.fault, "");
  // On several cores, a warning about a group of one.
  std::erase_if(screen.lines, [](const std::string& line) { return line.starts_with("[W"); });
  EXPECT_THAT(screen.lines,
              ElementsAre(StartsWith("epoch 1/3: mean loss "), StartsWith("epoch 2/3: mean loss "),
                          StartsWith("epoch 3/3: mean loss "), ""));
  EXPECT_THAT(screen.redrawn, Each(StartsWith("epoch ")));
  for (const char* const epoch : {"epoch 1/3 ", "epoch 2/3 ", "epoch 3/3 "}) {
    EXPECT_THAT(screen.redrawn, Contains(StartsWith(epoch)));
  }
  EXPECT_THAT(screen.redrawn, Contains(HasSubstr("/469, loss ")));
}

TEST(ProgressOfATrainer, IsLinesOfTextWhereALineCannotBeRedrawn) {
  const Screen screen = screen_of(output_on("dumb"));
  EXPECT_THAT(screen.redrawn, IsEmpty());
  EXPECT_THAT(screen.lines, Contains(StartsWith("epoch 1/3, step 100/469: loss ")));
}

}  // namespace
}  // namespace lockstep::testing
