// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/cpu.h"

#include <thread>

#include <gtest/gtest.h>

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

TEST(Cpu, ToldThreadsReachTheEnvironment) {
  limit_threads(3);
  EXPECT_STREQ(std::getenv("OMP_NUM_THREADS"), "3");
  EXPECT_STREQ(std::getenv("OPENBLAS_NUM_THREADS"), "3");
}

}  // namespace
}  // namespace lockstep
