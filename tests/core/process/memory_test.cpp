// SPDX-License-Identifier: BSD-3-Clause
// The memory that a process can still allocate.
#include "lockstep/core/process/memory.h"

#include <fstream>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(Memory, IsFoundAndIsNotMoreThanThereIs) {
  EXPECT_GT(available_memory(), 1 << 20);
  EXPECT_LT(available_memory(), std::int64_t{1} << 50);
}

TEST(Memory, ProcessesShareTheMachinesMemoryButNotTheAddressSpaceOfEach) {
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

}  // namespace
}  // namespace lockstep
