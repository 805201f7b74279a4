// SPDX-License-Identifier: BSD-3-Clause
// Offsets of clocks, between ranks that share one and say that they do not.
#include "lockstep/comm/clock_offset.h"

#include <cstdlib>

#include "tests/support/thread_group.h"
#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(ClockOffset, IsNothingForRanksThatShareAClock) {
  testing::run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const ClockOffset offset = measure_clock_offset("one", *group);
    EXPECT_EQ(offset.nanoseconds, 0);
    EXPECT_EQ(offset.error, 0);
  });
}

// The true offset is 0, since all ranks have one clock.
TEST(ClockOffset, IsWithinItsErrorOfTheTrueOne) {
  testing::run_rank_threads(4, [](const std::shared_ptr<ProcessGroup>& group) {
    const ClockOffset offset = measure_clock_offset(group->rank() < 2 ? "one" : "two", *group);
    if (group->rank() < 2) {
      EXPECT_EQ(offset.error, 0);
    } else {
      EXPECT_GT(offset.error, 0);
      EXPECT_LE(std::abs(offset.nanoseconds), offset.error);
    }
  });
}

TEST(ClockOffset, HasAName) {
  EXPECT_EQ(name_of_this_clock(), name_of_this_clock());
  EXPECT_GT(name_of_this_clock().size(), 8U);
}

}  // namespace
}  // namespace lockstep
