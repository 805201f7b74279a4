// SPDX-License-Identifier: BSD-3-Clause
// Hosts and ports as people write them.
#include "lockstep/core/net/tcp_socket.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

TEST(Endpoint, IsReadAndWrittenWithBracketsAroundAnIpv6Address) {
  for (const auto& [text, host, port] :
       {std::tuple("node0:29500", "node0", 29500), std::tuple("a_b-c.d.:1", "a_b-c.d.", 1),
        std::tuple("10.0.0.1:65535", "10.0.0.1", 65535), std::tuple("[::1]:29500", "::1", 29500),
        std::tuple("[2001:db8::1]:5", "2001:db8::1", 5),
        std::tuple("[fe80::1%eth0]:29500", "fe80::1%eth0", 29500)}) {
    const auto endpoint = parse_endpoint(text);
    ASSERT_TRUE(endpoint) << text;
    EXPECT_EQ(endpoint->host, host);
    EXPECT_EQ(endpoint->port, port);
    EXPECT_EQ(in_words(*endpoint), text);
  }
}

TEST(Endpoint, NeedsNoBracketsWhereThePortIsNoPartOfAnAddress) {
  EXPECT_EQ(parse_endpoint("::1:29500")->host, "::1");
  EXPECT_EQ(parse_endpoint("1:2:3:4:5:6:7:8:9")->port, 9);
  EXPECT_FALSE(parse_endpoint("::1:2950"));
  EXPECT_FALSE(parse_endpoint("2001:db8::1"));
}

TEST(Endpoint, IsNothingElse) {
  for (const char* text : {"",
                           ":",
                           "node0",
                           "node0:",
                           ":29500",
                           "node0:0",
                           "node0:65536",
                           "node0:29500x",
                           "node0: 29500",
                           " node0:29500",
                           "node0 :29500",
                           "a b:29500",
                           "http://node0:29500",
                           "node0:29500/",
                           "user@node0:29500",
                           "[::1]",
                           "[::1]29500",
                           "[::1:29500",
                           "::1]:29500",
                           "[node0]:29500",
                           "[]:29500",
                           "[::1%]:29500",
                           "[[::1]]:29500",
                           "a:b:29500",
                           "\"node0\":29500",
                           "1:2:3:4:5:6:7:8",
                           "node0,node1:29500"}) {
    EXPECT_FALSE(parse_endpoint(text)) << text;
  }
}

TEST(Endpoint, AHostAloneMayHaveTheBrackets) {
  EXPECT_EQ(parse_host("[::1]"), "::1");
  EXPECT_EQ(parse_host("::1"), "::1");
  EXPECT_EQ(parse_host("node0"), "node0");
  for (const char* text : {"", "[]", "[node0]", "node0:29500", "tcp://10.0.0.1:29500", "10.0.0.1 ",
                           "10.0.0.1 172.17.0.1", "'node0'"}) {
    EXPECT_FALSE(parse_host(text)) << text;
  }
}

}  // namespace
}  // namespace lockstep
