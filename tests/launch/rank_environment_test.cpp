// SPDX-License-Identifier: BSD-3-Clause
// How ranks of a machine share its cores.
#include "lockstep/launch/rank_environment.h"

#include <thread>

#include <gtest/gtest.h>
#include <unistd.h>

#include "lockstep/core/process/cpu.h"

namespace lockstep {
namespace {

using Shares = std::vector<std::vector<int>>;

TEST(CoreShares, SplitsAllCoresInOrder) {
  EXPECT_EQ(split_cores({0, 1}, 2, 1), (Shares{{0}, {1}}));
  EXPECT_EQ(split_cores({2, 3, 6, 7}, 2, 2), (Shares{{2, 3}, {6, 7}}));
}

TEST(CoreShares, LeavesTheRestToTheScheduler) {
  EXPECT_EQ(split_cores({0, 1, 2}, 2, 1), std::nullopt) << "a core would be idle";
  EXPECT_EQ(split_cores({0, 1}, 4, 1), std::nullopt) << "ranks would have to share";
  EXPECT_EQ(split_cores({0, 1}, 1, 2), std::nullopt) << "one rank has them all in any case";
}

// Numbers that no machine's cores have, so that jobs on this one are left alone.
TEST(CoreClaim, IsHeldByOneAtATime) {
  const int one = 100'000 + 3 * ::getpid();
  const int two = one + 1;
  const int three = one + 2;
  {
    const CoreClaim first({one, two});
    EXPECT_TRUE(first.held());
    EXPECT_FALSE(CoreClaim({two, three}).held());
    EXPECT_TRUE(CoreClaim({three}).held()) << "a claim that fails must hold nothing";
  }
  EXPECT_TRUE(CoreClaim({one, two}).held());
}

TEST(CoreShares, PinsOnlyWhileNobodyElseDoes) {
  const std::vector<int> cores = allowed_cores();
  const int ranks = static_cast<int>(cores.size());
  if (ranks < 2 || available_cores() < ranks) GTEST_SKIP() << "needs two cores without a quota";
  const CoreClaim other(cores);
  if (!other.held()) GTEST_SKIP() << "another job holds cores of this machine";
  std::thread([&] {
    CoreShares(ranks, 1).pin(0);
    EXPECT_EQ(allowed_cores(), cores);
  }).join();
}

}  // namespace
}  // namespace lockstep
