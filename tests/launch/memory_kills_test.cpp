// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/launch/memory_kills.h"

#include <fstream>

#include "support/private_tmpdir.h"
#include <gtest/gtest.h>

namespace lockstep {
namespace {

// A machine's files, as far as memory goes.
class MemoryKillsTest : public ::testing::Test {
 protected:
  MemoryKillsTest() {
    write("proc/self/cgroup", "0::/job\n");
    write("sys/fs/cgroup/job/memory.events", "oom 4\noom_kill 2\n");
  }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::filesystem::path root() const { return tmpdir_.path(); }

 private:
  const testing::PrivateTmpdir tmpdir_;
};

TEST_F(MemoryKillsTest, OnlyOneSinceTheBeginningTells) {
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

TEST_F(MemoryKillsTest, WithoutACountBothAreLikely) {
  EXPECT_EQ(MemoryKills(root() / "nowhere").words(),
            "killed by signal 9 (SIGKILL), likely out of memory or kill -9");
}

}  // namespace
}  // namespace lockstep
