// SPDX-License-Identifier: BSD-3-Clause
// How ends are described, and how a kill by the kernel for lack of memory is recognized.
#include "lockstep/launch/exit_status.h"

#include <thread>

#include "support/machine_files.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

TEST(ExitStatus, SaysHowAProcessEnded) {
  const MemoryKills kills;
  EXPECT_EQ((ExitStatus{.exit_code = 3}.words(kills)), "exit code 3");
  EXPECT_EQ((ExitStatus{.exit_code = 3}.code()), 3);
  EXPECT_EQ((ExitStatus{.signal = SIGKILL}.words(kills)), kills.words());
  EXPECT_EQ((ExitStatus{.signal = SIGKILL}.code()), 137);
  EXPECT_THAT((ExitStatus{.signal = SIGSEGV}.words(kills)), HasSubstr("(SIGSEGV)"));
  EXPECT_TRUE(ExitStatus{}.success());
  EXPECT_FALSE((ExitStatus{.signal = SIGTERM}.success()));
}

class MemoryKillsTest : public ::testing::Test, protected testing::MachineFiles {
 protected:
  MemoryKillsTest() {
    write("proc/self/cgroup", "0::/job\n");
    write("sys/fs/cgroup/job/memory.events", "oom 4\noom_kill 2\n");
  }
};

TEST_F(MemoryKillsTest, CountsOnlyKillsSinceItsConstruction) {
  const MemoryKills kills(root());
  EXPECT_EQ(kills.words(),
            "killed by signal 9 (SIGKILL), by kill -9 or the like: its control group did not run "
            "out of memory");
  write("sys/fs/cgroup/job/memory.events", "oom 5\noom_kill 3\n");
  EXPECT_EQ(kills.words(), "killed by the kernel: the machine is out of memory");
  write("sys/fs/cgroup/job/memory.max", "536870912\n");
  EXPECT_EQ(kills.words(),
            "killed by the kernel: out of memory, the control group's limit is 512 MiB");
  EXPECT_TRUE(MemoryKills(root()).words().ends_with("did not run out of memory"));
}

TEST_F(MemoryKillsTest, ALimitThatWasNotMetIsNotTheCause) {
  write("sys/fs/cgroup/job/memory.max", "536870912\n");
  const MemoryKills kills(root());
  write("sys/fs/cgroup/job/memory.events", "oom 4\noom_kill 3\n");
  EXPECT_EQ(kills.words(), "killed by the kernel: the machine is out of memory");
}

TEST_F(MemoryKillsTest, NamesTheLimitOfVersion1WhichDoesNotSayWhetherItWasMet) {
  write("proc/self/cgroup", "4:memory:/job\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "536870912\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n");
  const MemoryKills kills(root());
  write("sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill 3\n");
  EXPECT_EQ(kills.words(),
            "killed by the kernel: out of memory, the control group's limit is 512 MiB");
}

// As of a program that a rank has started, or of a rank of another job in the same group.
TEST_F(MemoryKillsTest, AKillOfLongAgoNeedNotBeTheReason) {
  MemoryKills kills(root());
  write("sys/fs/cgroup/job/memory.events", "oom 5\noom_kill 3\n");
  kills.look();
  EXPECT_EQ(kills.words(), "killed by the kernel: the machine is out of memory");
  EXPECT_EQ(kills.recent_kill_words(), kills.words());
  std::this_thread::sleep_for(MemoryKills::kTimeToEnd);
  kills.look();
  EXPECT_EQ(kills.words(), "killed by signal 9 (SIGKILL), likely out of memory or kill -9");
  EXPECT_EQ(kills.recent_kill_words(), "");
}

TEST_F(MemoryKillsTest, NamesBothGuessesWithoutACount) {
  EXPECT_EQ(MemoryKills(root() / "nowhere").words(),
            "killed by signal 9 (SIGKILL), likely out of memory or kill -9");
}

}  // namespace
}  // namespace lockstep
