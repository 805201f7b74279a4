// SPDX-License-Identifier: BSD-3-Clause
// The examples that have a counterpart in Python compute the same losses on the same batches.
#include <algorithm>
#include <cmath>
#include <regex>
#include <string>
#include <vector>

#include "checkpoint/pythons.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

std::vector<double> losses_in(const std::string& output) {
  static const std::regex loss("step [0-9]+: loss ([0-9.]+)");
  std::vector<double> losses;
  for (std::sregex_iterator match(output.begin(), output.end(), loss), end; match != end; ++match) {
    losses.push_back(std::stod((*match)[1]));
  }
  return losses;
}

class PythonCounterpart : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto pythons = pythons_with("torch");
    if (pythons.empty() || pythons.front() != kTorchPython) {
      return skip_or_fail("there is no Python with the torch that this test is linked to");
    }
  }

  static std::vector<std::string> python(const std::string& script,
                                         std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(),
                     {kTorchPython, "-B", "-W", "ignore",
                      std::string(kSourceFolder) + "/examples/python/" + script});
    return arguments;
  }

  // Runs the command in a folder of its own, and returns what it printed.
  std::string output_of(std::vector<std::string> command) const {
    command.insert(command.begin(), {"sh", "-c", "cd \"$0\" && exec \"$@\"", folder_.path()});
    const Ended ended = run_to_end(command);
    EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
    return ended.out;
  }

  void expect_same_losses(const std::vector<std::string>& example,
                          const std::vector<std::string>& counterpart) const {
    const std::vector<double> here = losses_in(output_of(example));
    const std::vector<double> there = losses_in(output_of(counterpart));
    ASSERT_GE(here.size(), 50u);
    ASSERT_EQ(here.size(), there.size());
    for (std::size_t step = 0; step < here.size(); ++step) {
      ASSERT_NEAR(here[step], there[step], 1e-4) << "step " << step + 1;
    }
    EXPECT_LT(here.back(), here.front());
  }

  std::string file(const std::string& name) const { return folder_.path() / name; }

 private:
  TemporaryFolder folder_;
};

TEST_F(PythonCounterpart, OfImageClassifier) {
  expect_same_losses({IMAGE_CLASSIFIER, "1280", "5"}, python("image_classifier.py", {"1280", "5"}));
}

TEST_F(PythonCounterpart, OfLanguageModel) {
  expect_same_losses({LANGUAGE_MODEL}, python("language_model.py", {}));
}

TEST_F(PythonCounterpart, OfFineTune) {
  output_of(python("fine_tune.py", {"pretrain", file("pretrained.pt")}));
  expect_same_losses({FINE_TUNE, file("pretrained.pt"), "1088"},
                     python("fine_tune.py", {file("pretrained.pt"), "1088"}));
  EXPECT_THAT(
      output_of({LOCKSTEP_PROGRAM, "run", "-n", "2", FINE_TUNE, file("pretrained.pt"), "5000"}),
      HasSubstr("3 of 3 parts trained: accuracy 0."));
}

}  // namespace
}  // namespace lockstep::testing
