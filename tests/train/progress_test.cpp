// SPDX-License-Identifier: BSD-3-Clause
// Progress lines: when they come, and what they say.
#include "lockstep/train/progress.h"

#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

TEST(Progress, MakesALineEverySoManySteps) {
  std::vector<std::string> lines;
  Progress progress([&](const std::string& line) { lines.push_back(line); }, 3);
  for (int step = 1; step <= 7; ++step) {
    progress.step([&] { return fmt::format("step {}/7", step); }, at::tensor(step / 8.0));
  }
  EXPECT_THAT(lines,
              ElementsAre(MatchesRegex("step 3/7: loss 0\\.3750, [0-9]+\\.[0-9]{3} ms per batch"),
                          MatchesRegex("step 6/7: loss 0\\.7500, [0-9]+\\.[0-9]{3} ms per batch")));
}

TEST(Progress, AsksForNothingBetweenLines) {
  Progress progress([](const std::string&) { ADD_FAILURE() << "there is no line to make"; }, 2);
  const at::Tensor never_read;
  progress.step([]() -> std::string { throw UsageError("where is asked for"); }, never_read);
}

TEST(Progress, RefusesANumberOfStepsThatMakesNoLine) {
  EXPECT_THROW(Progress([](const std::string&) {}, 0), UsageError);
}

}  // namespace
}  // namespace lockstep
