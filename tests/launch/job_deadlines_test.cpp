// SPDX-License-Identifier: BSD-3-Clause
// How long a launcher sleeps, and deadlines of a suspended job.
#include "lockstep/launch/job_deadlines.h"

#include <chrono>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

using namespace std::chrono_literals;

TEST(JobDeadlines, TheLoopSleepsUntilTheFirstAtWhichItActs) {
  JobDeadlines deadlines;
  EXPECT_EQ(deadlines.sleep_time(1h), 1h);
  deadlines.set(JobDeadline::kill, 10min);
  deadlines.set(JobDeadline::decision, 20min);
  deadlines.set(JobDeadline::repeated_signal, 0ms);
  deadlines.set(JobDeadline::output, 0ms);
  EXPECT_LE(deadlines.sleep_time(1h), 10min);
  EXPECT_GT(deadlines.sleep_time(1h), 9min);
  deadlines.clear(JobDeadline::kill);
  EXPECT_GT(deadlines.sleep_time(1h), 10min);
}

TEST(JobDeadlines, CanOnlyBeMovedForwardsBySetEarlier) {
  JobDeadlines deadlines;
  deadlines.set_earlier(JobDeadline::decision, 10min);
  deadlines.set_earlier(JobDeadline::decision, 20min);
  EXPECT_LE(deadlines.remaining(JobDeadline::decision), 10min);
  deadlines.set_earlier(JobDeadline::decision, 0ms);
  EXPECT_TRUE(deadlines.passed(JobDeadline::decision));
}

TEST(JobDeadlines, StandStillWhileTheJobIsSuspended) {
  JobDeadlines deadlines;
  deadlines.set(JobDeadline::kill, 10min);
  deadlines.set(JobDeadline::kill_effect, 0ms);
  deadlines.suspend();
  EXPECT_FALSE(deadlines.passed(JobDeadline::kill_effect));
  EXPECT_EQ(deadlines.sleep_time(1h), 1h);
  deadlines.suspend();
  for (int times = 0; times < 2; ++times) {  // a second time changes nothing
    deadlines.resume();
    EXPECT_GT(deadlines.remaining(JobDeadline::kill), 9min);
    EXPECT_TRUE(deadlines.passed(JobDeadline::kill_effect));
    EXPECT_FALSE(deadlines.is_set(JobDeadline::arrival));
  }
}

}  // namespace
}  // namespace lockstep
