// SPDX-License-Identifier: BSD-3-Clause
// Cores, memory and threads of this machine, as a process may use them.
#include "lockstep/core/process/cpu.h"

#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(Cpu, CountsTheCoresOfTheAffinityMask) {
  std::thread([] {
    const auto before = allowed_cores();
    EXPECT_LE(available_cores(), static_cast<int>(before.size()));
    pin_to_cores({before.front()});
    EXPECT_EQ(allowed_cores(), std::vector{before.front()});
    EXPECT_EQ(available_cores(), 1);
  }).join();
}

TEST(Cpu, FindsSomeMemoryAndNotMoreThanThereIs) {
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LT(available_memory(), std::int64_t{1} << 50);
}

TEST(Cpu, ProcessesShareTheMachinesMemoryButNotTheAddressSpaceOfEach) {
  EXPECT_LT(available_memory(1000), available_memory() / 100);
  const auto under_a_limit = [] {
    const auto room = std::int64_t{1} << 26;
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto most = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + room);
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_AS, &limit);
    const bool right = available_memory() <= room && available_memory(2) > room / 2 &&
                       address_space_left() > room / 2;
    ::_exit(right ? 0 : 1);
  };
  EXPECT_EXIT(under_a_limit(), ::testing::ExitedWithCode(0), "");
}

TEST(Cpu, FindsTheMaskOfAnotherProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    pin_to_cores({allowed_cores().back()});
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, WUNTRACED);
  EXPECT_EQ(allowed_cores(child), std::vector{allowed_cores().back()});
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(allowed_cores(child).empty());  // unknown
}

TEST(Cpu, WarnsOfMoreRanksThanCores) {
  EXPECT_EQ(oversubscription(2, 2), "");
  EXPECT_THAT(oversubscription(3, 2),
              ::testing::StartsWith("3 ranks share 2 cores and take turns"));
  EXPECT_THAT(oversubscription(2, 1), ::testing::HasSubstr("share 1 core and"));
  EXPECT_THAT(oversubscription(2, 1), ::testing::HasSubstr("start at most 1 on this machine"));
}

TEST(Cpu, ToldThreadsReachTheEnvironment) {
  limit_threads(3);
  EXPECT_STREQ(std::getenv("OMP_NUM_THREADS"), "3");
  EXPECT_STREQ(std::getenv("OPENBLAS_NUM_THREADS"), "3");
}

}  // namespace
}  // namespace lockstep
