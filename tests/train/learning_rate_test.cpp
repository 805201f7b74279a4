// SPDX-License-Identifier: BSD-3-Clause
// Learning rates that are scaled and warmed up.
#include "lockstep/train/learning_rate.h"

#include <cmath>

#include <gtest/gtest.h>

#include "lockstep/core/error.h"

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

// The expected rates are those of torch.optim.lr_scheduler in PyTorch 2.13.0.
TEST(LearningRate, FallsInStepsLikeStepLr) {
  const LearningRateSchedule schedule{.base = 0.5,
                                      .steps = 100,
                                      .decay = LearningRateDecay::step,
                                      .decay_steps = 3,
                                      .decay_factor = 0.5};
  EXPECT_EQ(learning_rate_at(schedule, 0), 0.5);
  EXPECT_EQ(learning_rate_at(schedule, 2), 0.5);
  EXPECT_EQ(learning_rate_at(schedule, 3), 0.25);
  EXPECT_EQ(learning_rate_at(schedule, 9), 0.0625);
}

TEST(LearningRate, ImpossibleSchedulesAreRefused) {
  EXPECT_NO_THROW(check_schedule({}));
  EXPECT_NO_THROW(check_schedule({.scale = 2, .steps = 10, .decay = LearningRateDecay::cosine}));
  EXPECT_THROW(check_schedule({.base = 0}), UsageError);
  EXPECT_THROW(check_schedule({.scale = -1, .steps = 10}), UsageError);
  EXPECT_THROW(check_schedule({.scale = 2}), UsageError);
  EXPECT_THROW(check_schedule({.decay = LearningRateDecay::cosine}), UsageError);
  EXPECT_THROW(check_schedule({.steps = 10, .decay = LearningRateDecay::step}), UsageError);
}

TEST(LearningRate, FallsAlongACosineLikeCosineAnnealingLr) {
  const LearningRateSchedule schedule{
      .base = 0.5, .steps = 10, .decay = LearningRateDecay::cosine, .minimum = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 0), 0.5);
  EXPECT_NEAR(learning_rate_at(schedule, 3), 0.41755705045849463, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 5), 0.3);
  EXPECT_NEAR(learning_rate_at(schedule, 9), 0.10978869674096932, 1e-15);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 10), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 12), 0.1);
}

TEST(LearningRate, RefusesAFactorOrMinimumThatIsNotFinite) {
  EXPECT_THROW(check_schedule({.decay_factor = HUGE_VAL}), UsageError);
  EXPECT_THROW(check_schedule({.minimum = std::nan("")}), UsageError);
}

TEST(LearningRate, FallsAfterTheWarmUp) {
  const LearningRateSchedule schedule{
      .base = 1, .scale = 2, .steps = 110, .decay = LearningRateDecay::cosine};
  EXPECT_EQ(schedule.warmup_steps(), 11);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule, 11), 2);
  EXPECT_NEAR(learning_rate_at(schedule, 11 + 33), 1.5, 1e-12);
}

TEST(LearningRate, OfAShortTrainingIsScaledAtOnce) {
  EXPECT_EQ(learning_rate_at({.base = 1, .scale = 2, .steps = 9}, 0), 2);
}

}  // namespace
}  // namespace lockstep
