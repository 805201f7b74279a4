// SPDX-License-Identifier: BSD-3-Clause
// Claims on cores exclude each other.
#include "lockstep/core/process/core_claim.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// Numbers that no machine's cores have, so that jobs on this one are left alone.
TEST(CoreClaim, IsHeldByOneAtATime) {
  {
    const CoreClaim first({100001, 100002});
    EXPECT_TRUE(first.held());
    EXPECT_FALSE(CoreClaim({100002, 100003}).held());
    EXPECT_TRUE(CoreClaim({100003}).held()) << "a claim that fails must hold nothing";
  }
  EXPECT_TRUE(CoreClaim({100001, 100002}).held());
}

}  // namespace
}  // namespace lockstep
