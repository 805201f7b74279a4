// SPDX-License-Identifier: BSD-3-Clause
// Slurm's lists of hosts, also hostile ones. The hosts are those of `scontrol show
// hostnames` 22.05, which refuses names that go on behind their last set.
#include "lockstep/rendezvous/hostlist.h"

#include <gmock/gmock.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr std::size_t kAll = 1000;

TEST(HostList, IsExpandedAsScontrolExpandsIt) {
  EXPECT_THAT(expand_hostlist("single", kAll), ElementsAre("single"));
  EXPECT_THAT(expand_hostlist("a,b", kAll), ElementsAre("a", "b"));
  EXPECT_THAT(expand_hostlist("n[01-03,7],x", kAll), ElementsAre("n01", "n02", "n03", "n7", "x"));
  EXPECT_THAT(expand_hostlist("rack-1-node[7]", kAll), ElementsAre("rack-1-node7"));
  EXPECT_THAT(expand_hostlist("a,b[001,003-004],c", kAll),
              ElementsAre("a", "b001", "b003", "b004", "c"));
  EXPECT_THAT(expand_hostlist("n[08-10]", kAll), ElementsAre("n08", "n09", "n10"));
  EXPECT_THAT(expand_hostlist("n[001-02]", kAll), ElementsAre("n001", "n002"));
  EXPECT_THAT(expand_hostlist("n[1-02]", kAll), ElementsAre("n1", "n2"));
  EXPECT_THAT(expand_hostlist("n[99-101]", kAll), ElementsAre("n99", "n100", "n101"));
  EXPECT_THAT(expand_hostlist("[1-2]", kAll), ElementsAre("1", "2"));
  EXPECT_THAT(expand_hostlist("n[9,1]", kAll), ElementsAre("n9", "n1"));
  EXPECT_THAT(expand_hostlist("n[1-2][3-4]", kAll), ElementsAre("n13", "n14", "n23", "n24"));
  EXPECT_THAT(expand_hostlist("a,,b ,c", kAll), ElementsAre("a", "b", "c"));
  EXPECT_THAT(expand_hostlist("rack[1-2]node[1-4]", kAll),
              ElementsAre("rack1node1", "rack1node2", "rack1node3", "rack1node4", "rack2node1",
                          "rack2node2", "rack2node3", "rack2node4"));
}

TEST(HostList, NamesMayGoOnBehindASet) {
  EXPECT_THAT(expand_hostlist("gpu[01-02]-ib0", kAll), ElementsAre("gpu01-ib0", "gpu02-ib0"));
  EXPECT_THAT(expand_hostlist("a[1-2]b,c[3,5]d", kAll), ElementsAre("a1b", "a2b", "c3d", "c5d"));
  EXPECT_THAT(expand_hostlist("a[1-2]b[3]c[4-5]d", kAll),
              ElementsAre("a1b3c4d", "a1b3c5d", "a2b3c4d", "a2b3c5d"));
}

TEST(HostList, IsExpandedOnlyAsFarAsItIsWanted) {
  EXPECT_THAT(expand_hostlist("n[0-9000000000000000000]", 2), ElementsAre("n0", "n1"));
  EXPECT_THAT(expand_hostlist("n[9223372036854775806]", 2), SizeIs(1));
  std::string sets = "n";
  for (int i = 0; i < 100; ++i) sets += "[0-99999999]";
  EXPECT_THAT(expand_hostlist(sets + "," + sets, 3), SizeIs(3));
  EXPECT_THAT(expand_hostlist("a,b", 0), SizeIs(0));
}

TEST(HostList, ThatIsNoneIsRefused) {
  const auto expect_refused = [](const std::string& list, const std::string& part) {
    EXPECT_THAT([&] { expand_hostlist(list, 1); }, ThrowsMessage<UsageError>(HasSubstr(part)))
        << list;
  };
  for (const char* list :
       {"n[5-3]", "n[]", "n[1,]", "n[,1]", "n[1-]", "n[-1]", "n[a-b]", "n[0x1]", "n[1 - 2]",
        "n[[1-2]]", "n[1--2]", "n[+1]", "n[1-2-3]", "n[99999999999999999999]"}) {
    expect_refused(list, "is neither a number nor a range");
  }
  // Behind the first host too.
  expect_refused("a,n[1-2", "\"a,n[1-2\" is not a list of hosts");
  expect_refused("n]1", "no [ before");
  expect_refused("", "has no host");
  expect_refused(" ,, ", "has no host");
  expect_refused(std::string(100'000, 'n'), "longer than host names");
  expect_refused(std::string(250, 'n') + "[000007]", "longer than host names");
  std::string sets;
  for (int i = 0; i < 100'000; ++i) sets += "[1]";
  expect_refused(sets, "longer than host names");
  expect_refused("n[" + std::string(100'000, '0') + "1]", "...\" is not a list");
}

}  // namespace
}  // namespace lockstep
