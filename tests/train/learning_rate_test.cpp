// SPDX-License-Identifier: BSD-3-Clause
// Learning rates that are scaled and warmed up.
#include "lockstep/train/learning_rate.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(LearningRate, StaysAsItIsWithoutScaling) {
  const LearningRateSchedule schedule{.base = 0.01, .scale = 1, .steps = 1000};
  EXPECT_EQ(schedule.warmup_steps(), 0);
  EXPECT_EQ(learning_rate_at(schedule, 0), 0.01);
  EXPECT_EQ(learning_rate_at(schedule, 999), 0.01);
}

TEST(LearningRate, GrowsEvenlyFromTheBaseToTheScaledRate) {
  const LearningRateSchedule schedule{.base = 0.5, .scale = 4, .steps = 1000};
  EXPECT_EQ(schedule.warmup_steps(), 100);
  EXPECT_EQ(learning_rate_at(schedule, 0), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 50), 1.25);
  for (int step = 1; step < 100; ++step) {
    EXPECT_NEAR(learning_rate_at(schedule, step) - learning_rate_at(schedule, step - 1), 0.015,
                1e-12);
  }
  EXPECT_EQ(learning_rate_at(schedule, 100), 2);
  EXPECT_EQ(learning_rate_at(schedule, 999), 2);
}

TEST(LearningRate, OfAShortTrainingIsScaledAtOnce) {
  EXPECT_EQ(learning_rate_at({.base = 1, .scale = 2, .steps = 9}, 0), 2);
}

}  // namespace
}  // namespace lockstep
