// SPDX-License-Identifier: BSD-3-Clause
// Limits of control groups, versions 1 and 2, read from the files of a made-up machine.
#include "lockstep/core/process/cgroup.h"

#include "support/machine_files.h"
#include <gtest/gtest.h>

namespace lockstep::testing {
namespace {

class CgroupTest : public ::testing::Test, protected MachineFiles {};

TEST_F(CgroupTest, ReadsVersion2) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("sys/fs/cgroup/jobs/one/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/jobs/one/memory.max", "1000000\n");
  write("sys/fs/cgroup/jobs/one/memory.current", "700000\n");
  const Cgroup cgroup(root());
  EXPECT_EQ(cgroup.cpu_quota(), 1.5);
  EXPECT_EQ(cgroup.memory_limit(), 1'000'000);
  EXPECT_EQ(cgroup.available_memory(), 300'000);
}

TEST_F(CgroupTest, ReadsVersion1) {
  write("proc/self/cgroup",
        "5:memory:/jobs/one\n4:cpu,cpuacct:/jobs/one\n1:name=systemd:/\n0::/\n");
  write("sys/fs/cgroup/cpu/jobs/one/cpu.cfs_quota_us", "50000\n");
  write("sys/fs/cgroup/cpu/jobs/one/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/jobs/one/memory.limit_in_bytes", "1000000\n");
  write("sys/fs/cgroup/memory/jobs/one/memory.usage_in_bytes", "900000\n");
  const Cgroup cgroup(root());
  EXPECT_EQ(cgroup.cpu_quota(), 0.5);
  EXPECT_EQ(cgroup.memory_limit(), 1'000'000);
  EXPECT_EQ(cgroup.available_memory(), 100'000);
}

TEST_F(CgroupTest, TheTightestOnTheWayUpBinds) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  write("sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/jobs/cpu.max", "300000 100000\n");
  write("sys/fs/cgroup/jobs/one/memory.max", "5000\n");
  write("sys/fs/cgroup/jobs/one/memory.current", "1000\n");
  write("sys/fs/cgroup/jobs/memory.max", "6000\n");
  write("sys/fs/cgroup/jobs/memory.current", "5500\n");
  const Cgroup cgroup(root());
  EXPECT_EQ(cgroup.cpu_quota(), 3);
  EXPECT_EQ(cgroup.memory_limit(), 5000);
  EXPECT_EQ(cgroup.available_memory(), 500);
}

TEST_F(CgroupTest, OfAContainerTheTopIsSeen) {
  write("proc/self/cgroup", "5:memory:/docker/4711\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  EXPECT_EQ(Cgroup(root()).memory_limit(), 1'000'000);
}

TEST_F(CgroupTest, CachedPagesOfFilesAreFree) {
  write("proc/self/cgroup", "0::/new\n");
  write("sys/fs/cgroup/new/memory.max", "1000\n");
  write("sys/fs/cgroup/new/memory.current", "990\n");
  write("sys/fs/cgroup/new/memory.stat", "file 600\nactive_file 50\ninactive_file 450\n");
  EXPECT_EQ(Cgroup(root()).available_memory(), 510);
  write("proc/self/cgroup", "5:memory:/old\n");
  write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "1000\n");
  write("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "990\n");
  write("sys/fs/cgroup/memory/old/memory.stat",
        "inactive_file 300\ntotal_inactive_file 400\ntotal_active_file 100\n");
  EXPECT_EQ(Cgroup(root()).available_memory(), 510);
}

TEST_F(CgroupTest, CountsTheKillsOfTheNearestGroupThatDoes) {
  write("proc/self/cgroup", "0::/jobs/one\n");
  EXPECT_FALSE(Cgroup(root()).memory_kills());
  write("sys/fs/cgroup/jobs/memory.events", "low 0\nhigh 0\nmax 8\noom 7\noom_kill 3\n");
  EXPECT_EQ(Cgroup(root()).memory_kills(), 3);
  write("sys/fs/cgroup/jobs/one/memory.events", "oom 1\noom_kill 0\noom_group_kill 0\n");
  EXPECT_EQ(Cgroup(root()).memory_kills(), 0);
  write("proc/self/cgroup", "5:memory:/old\n0::/\n");
  write("sys/fs/cgroup/memory/old/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n");
  EXPECT_EQ(Cgroup(root()).memory_kills(), 5);
}

TEST_F(CgroupTest, NoLimitIsNone) {
  write("proc/self/cgroup", "5:memory:/\n4:cpu:/\n0::/free\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/free/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/free/memory.max", "max\n");
  for (const auto& folder : {root(), root() / "nowhere"}) {
    const Cgroup cgroup(folder);
    EXPECT_FALSE(cgroup.cpu_quota());
    EXPECT_FALSE(cgroup.memory_limit());
    EXPECT_FALSE(cgroup.available_memory());
  }
}

TEST_F(CgroupTest, SurvivesNonsense) {
  for (const char* text :
       {"", ":", "::", "0:", "0::", "0::x", "5:memory:..\n", "\n\n", "0::/a/b"}) {
    write("proc/self/cgroup", text);
    write("sys/fs/cgroup/a/b/cpu.max", "x");
    write("sys/fs/cgroup/a/b/memory.max", "-");
    write("sys/fs/cgroup/a/memory.max", "99999999999999999999999");
    write("sys/fs/cgroup/memory.max", "-1");
    EXPECT_FALSE(Cgroup(root()).available_memory()) << text;
    EXPECT_FALSE(Cgroup(root()).cpu_quota()) << text;
  }
}

}  // namespace
}  // namespace lockstep::testing
