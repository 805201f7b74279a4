// SPDX-License-Identifier: BSD-3-Clause
// Names of network interfaces that libraries take from the environment.
#include "lockstep/core/net/network_interfaces.h"

#include "support/free_port.h"
#include <gmock/gmock.h>
#include <stdlib.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using testing::has_ipv6;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

TEST(NetworkInterfaces, NcclReadsAListOfBeginnings) {
  EXPECT_TRUE(nccl_uses("eth", "eth0"));
  EXPECT_TRUE(nccl_uses("ib,eth", "eth0"));
  EXPECT_FALSE(nccl_uses("ib", "eth0"));
  EXPECT_FALSE(nccl_uses("=eth", "eth0"));
  EXPECT_TRUE(nccl_uses("=eth0", "eth0"));
  EXPECT_FALSE(nccl_uses("^eth", "eth0"));
  EXPECT_TRUE(nccl_uses("^docker,lo", "eth0"));
  EXPECT_TRUE(nccl_uses("^=eth", "eth0"));
}

TEST(NetworkInterfaces, GlooReadsAListOfWholeNames) {
  EXPECT_TRUE(gloo_uses("eth0", "eth0"));
  EXPECT_FALSE(gloo_uses("eth", "eth0"));
  EXPECT_TRUE(gloo_uses("ib0,eth0", "eth0"));
  EXPECT_TRUE(gloo_uses("ib0,,eth0,", "eth0"));
  EXPECT_FALSE(gloo_uses("ib0,", "eth0"));
  EXPECT_TRUE(gloo_uses("=ib0,eth0", "eth0"));
  EXPECT_FALSE(gloo_uses("=eth", "eth0"));
  // What is excluded begins so, as NCCL's users expect.
  EXPECT_FALSE(gloo_uses("^eth", "eth0"));
  EXPECT_TRUE(gloo_uses("^docker,lo", "eth0"));
  EXPECT_TRUE(gloo_uses("^=eth", "eth0"));
  EXPECT_FALSE(gloo_uses("^=lo,eth0", "eth0"));
}

TEST(NetworkInterfaces, GlooListensOnTheFirstThatIsThere) {
  EXPECT_EQ(gloo_address("lo", "127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(gloo_address("lo", "192.0.2.1"), "127.0.0.1");
  EXPECT_EQ(gloo_address("no-such-wire,lo", "192.0.2.1"), "127.0.0.1");
  EXPECT_EQ(gloo_address("=lo", "192.0.2.1"), "127.0.0.1");
  EXPECT_EQ(gloo_address("^no-such-wire", "127.0.0.1"), "127.0.0.1");
  EXPECT_NE(gloo_address("^no-such-wire", "192.0.2.1"), "");
  EXPECT_THROW(gloo_address("no-such-wire", "127.0.0.1"), BackendError);
}

TEST(NetworkInterfaces, GlooPrefersTheFamilyThatLeadsToRank0) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  EXPECT_EQ(gloo_address("lo", "::1"), "::1");
  EXPECT_EQ(gloo_address("lo", "2001:db8::1"), "::1");
}

TEST(NetworkInterfaces, RefusesAnUnknownNameAndListsThoseThatExist) {
  constexpr const char* kVariable = "LOCKSTEP_TEST_IFNAME";
  check_interfaces({}, kVariable, gloo_uses);
  ::setenv(kVariable, "lo", 1);
  check_interfaces({}, kVariable, gloo_uses);
  ::setenv(kVariable, "no-such-wire", 1);
  const ErrorContext context{.component = "gloo", .rank = 1, .size = 2};
  EXPECT_THAT([&] { check_interfaces(context, kVariable, gloo_uses); },
              ThrowsMessage<UsageError>(AllOf(StartsWith("[gloo] rank 1 of 2: "),
                                              HasSubstr("LOCKSTEP_TEST_IFNAME=no-such-wire"),
                                              HasSubstr("lo (127.0.0.1)"))));
  ::unsetenv(kVariable);
}

}  // namespace
}  // namespace lockstep
