// SPDX-License-Identifier: BSD-3-Clause
// The bar's text at several widths, and the states that a meter makes of steps.
#include "lockstep/train/progress_bar.h"

#include <chrono>
#include <cmath>
#include <thread>

#include <gmock/gmock.h>
#include <torch/types.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const ProgressState kState{.epoch = 2,
                           .epochs = 5,
                           .step_of_epoch = 469,
                           .steps_per_epoch = 938,
                           .loss = 0.43124,
                           .samples_per_second = 51234.4,
                           .seconds_left = 65.2};

TEST(ProgressBar, ShowsStepLossSpeedAndRemainingTime) {
  EXPECT_EQ(progress_bar(kState, 81, false),
            "epoch 2/5 [========>          ] 469/938, loss 0.4312, 51234 samples/s, 1:05 left");
}

TEST(ProgressBar, LeavesTheLastColumnEmptyAtAnyWidth) {
  for (int columns = 0; columns < 300; ++columns) {
    const std::string line = progress_bar(kState, columns, false);
    EXPECT_LE(line.size(), std::max(columns - 1, 0)) << line;
    if (columns > 100) {
      EXPECT_THAT(line, HasSubstr("1:05 left"));
    }
  }
}

TEST(ProgressBar, LeavesOutPartsWhereTheTerminalIsNarrow) {
  EXPECT_EQ(progress_bar(kState, 40, false), "epoch 2/5 [==>   ] 469/938, loss 0.4312");
  EXPECT_EQ(progress_bar(kState, 20, false), "epoch 2/5 469/938");
  EXPECT_EQ(progress_bar(kState, 9, false), "epoch 2/");
  // A short speed does not replace a long time.
  ProgressState slow = kState;
  slow.samples_per_second = 5;
  slow.seconds_left = 1e8;
  EXPECT_EQ(progress_bar(slow, 55, false),
            "epoch 2/5 [=========>           ] 469/938, loss 0.4312");
}

TEST(ProgressBar, LeavesOutTheSpeedUntilItIsKnown) {
  ProgressState state = kState;
  state.samples_per_second = 0;
  EXPECT_THAT(progress_bar(state, 81, false), ::testing::EndsWith(" 469/938, loss 0.4312"));
}

TEST(ProgressBar, CountsOtherWork) {
  EXPECT_EQ(count_bar("step mlp", 3, 12, 5.4, 51, false),
            "step mlp [====>                  ] 3/12, 0:05 left");
  EXPECT_EQ(count_bar("step mlp", 3, 12, 5.4, 14, false), "step mlp 3/12");
  EXPECT_EQ(count_bar("step mlp", 0, 12, {}, 30, false), "step mlp [             ] 0/12");
}

TEST(ProgressBar, IsFullAtTheEndOfAnEpoch) {
  ProgressState state = kState;
  state.step_of_epoch = 938;
  EXPECT_THAT(progress_bar(state, 81, false), HasSubstr("[===================] 938/938"));
  state.step_of_epoch = 0;
  EXPECT_THAT(progress_bar(state, 81, false), HasSubstr("[                     ] 0/938"));
}

TEST(ProgressBar, ColoursOnlyTheBar) {
  const std::string plain = progress_bar(kState, 81, false);
  std::string coloured = progress_bar(kState, 81, true);
  EXPECT_THAT(plain, Not(HasSubstr("\033")));
  for (const std::string code : {"\033[32m", "\033[0m"}) {
    const auto at = coloured.find(code);
    ASSERT_NE(at, std::string::npos);
    coloured.erase(at, code.size());
  }
  EXPECT_EQ(coloured, plain);
}

TEST(ProgressBar, WritesLongTimesWithHours) {
  ProgressState state = kState;
  state.seconds_left = 7384.9;
  EXPECT_THAT(progress_bar(state, 100, false), HasSubstr("2:03:05 left"));
}

TEST(ProgressBar, PassesThroughAStore) {
  for (const double loss : {0.5, std::nan(""), double{INFINITY}}) {
    ProgressState state = kState;
    state.loss = loss;
    const auto read = progress_from_text(to_text(state));
    ASSERT_TRUE(read);
    EXPECT_EQ(progress_bar(*read, 90, true), progress_bar(state, 90, true));
  }
  EXPECT_FALSE(progress_from_text(""));
  EXPECT_FALSE(progress_from_text("1 2 three"));
}

TEST(ProgressMeter, SkipsStepsThatComeTooSoonButNotTheLast) {
  ProgressMeter meter;
  const RunSteps run{.epochs = 1, .per_epoch = 1000};
  StepSummary step{.loss = torch::tensor(0.25), .samples = 32, .samples_of_epoch = 1};
  const auto first = meter.step(run, step);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->loss, 0.25);
  int states = 0;
  for (step.samples_of_epoch = 2; step.samples_of_epoch < 1000; ++step.samples_of_epoch) {
    states += meter.step(run, step) ? 1 : 0;
  }
  EXPECT_LT(states, 900);
  const auto last = meter.step(run, step);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->seconds_left, 0);
  EXPECT_GT(last->samples_per_second, 0);
}

TEST(ProgressMeter, StepsBeforeAResumptionTookNoTime) {
  ProgressMeter meter;
  const RunSteps run{.epochs = 10, .per_epoch = 1'000'000};
  StepSummary step{.epoch = 9, .loss = torch::tensor(0.25), .samples_of_epoch = 1};
  meter.step(run, step);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ++step.samples_of_epoch;
  const auto second = meter.step(run, step);
  ASSERT_TRUE(second);
  EXPECT_GE(second->seconds_left, 0.2 * 999'998);
}

}  // namespace
}  // namespace lockstep
