// SPDX-License-Identifier: BSD-3-Clause
// Names of network interfaces that libraries take from the environment.
#include "lockstep/core/network_interfaces.h"

#include <gmock/gmock.h>
#include <stdlib.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
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

TEST(NetworkInterfaces, RefusesAnUnknownNameAndListsThoseThatExist) {
  constexpr const char* kVariable = "LOCKSTEP_TEST_IFNAME";
  check_interfaces("", kVariable, gloo_uses);
  ::setenv(kVariable, "lo", 1);
  check_interfaces("", kVariable, gloo_uses);
  ::setenv(kVariable, "no-such-wire", 1);
  EXPECT_THAT([&] { check_interfaces("[gloo] rank 1 of 2: ", kVariable, gloo_uses); },
              ThrowsMessage<UsageError>(AllOf(StartsWith("[gloo] rank 1 of 2: "),
                                              HasSubstr("LOCKSTEP_TEST_IFNAME=no-such-wire"),
                                              HasSubstr("lo (127.0.0.1)"))));
  ::unsetenv(kVariable);
}

}  // namespace
}  // namespace lockstep
