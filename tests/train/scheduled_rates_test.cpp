// SPDX-License-Identifier: BSD-3-Clause
// A schedule's numbers, and what is said if they differ.
#include "lockstep/train/scheduled_rates.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(ScheduleNumbers, NamesEveryOptionAndTheRateOfEachGroup) {
  const LearningRateSchedule schedule{.base = 0.5,
                                      .scale = 4,
                                      .steps = 100,
                                      .decay = LearningRateDecay::step,
                                      .decay_steps = 30,
                                      .decay_factor = 0.2,
                                      .minimum = 0.01};
  EXPECT_EQ(schedule_numbers(schedule, {0.1, 0.3}), (ScheduleNumbers{{"base", 0.5},
                                                                     {"scale", 4},
                                                                     {"steps", 100},
                                                                     {"decay", 1},
                                                                     {"decay_steps", 30},
                                                                     {"decay_factor", 0.2},
                                                                     {"minimum", 0.01},
                                                                     {"initial_lr.0", 0.1},
                                                                     {"initial_lr.1", 0.3}}));
}

TEST(ScheduleNumbers, InitialRatesAreTheCheckpointsWhereItHasThem) {
  EXPECT_THAT(initial_rates({{"initial_lr.1", 0.3}, {"base", 7}}, {0.1, 0.2}),
              ElementsAre(0.1, 0.3));
}

TEST(ScheduleNumbers, SaysWhatDiffersInWords) {
  const LearningRateSchedule cosine{.steps = 1'000'000, .decay = LearningRateDecay::cosine};
  const ScheduleNumbers of_flat = schedule_numbers({.steps = 20}, {0.1, 0.2});
  EXPECT_THAT(
      schedule_differences(cosine, {0.1, 0.3}, of_flat),
      ElementsAre("the learning-rate schedule differs from the checkpoint's: decay cosine "
                  "(checkpoint: none), steps 1000000 (checkpoint: 20); this program's is used",
                  "the optimizer's learning rates differ from the checkpoint's: initial_lr.1 0.3 "
                  "(checkpoint: 0.2); the checkpoint's are used"));
  EXPECT_THAT(schedule_differences({}, {0.1}, schedule_numbers(cosine, {0.1})),
              ElementsAre("the learning-rate schedule differs from the checkpoint's: decay none "
                          "(checkpoint: cosine), steps 0 (checkpoint: 1000000); this program's is "
                          "used"));
  EXPECT_THAT(schedule_differences(cosine, {0.1}, schedule_numbers(cosine, {0.1})), IsEmpty());
}

TEST(ScheduleNumbers, WhatHasNoEffectOrWasNotSavedDoesNotDiffer) {
  EXPECT_THAT(schedule_differences({.steps = 30}, {0.1}, schedule_numbers({.steps = 20}, {0.1})),
              IsEmpty());
  EXPECT_THAT(schedule_differences({.scale = 2, .steps = 30}, {0.1}, {{"gamma", 0.5}}), IsEmpty());
}

}  // namespace
}  // namespace lockstep
