// SPDX-License-Identifier: BSD-3-Clause
// Cores and threads that a process may use, and the load from given texts of /proc and beside a
// thread that takes the core.
#include "lockstep/core/process/cpu.h"

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <signal.h>
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

TEST(Load, CountsIdleCoresBetweenTwoReadings) {
  const std::string before =
      "cpu  30 0 0 300 0 0 0 0 0 0\n"
      "cpu0 10 0 0 100 0 0 0 0 0 0\n"
      "cpu1 10 0 0 100 0 0 0 0 0 0\n"
      "cpu2 10 0 0 100 0 0 0 0 0 0\nintr 7\n";
  const std::string after =
      "cpu  160 20 0 430 20 0 0 0 50 0\n"
      "cpu0 60 0 0 150 0 0 0 0 50 0\n"  // half idle; guests are part of user
      "cpu1 10 0 0 180 20 0 0 0 0 0\n"  // waits for disks at most
      "cpu2 90 20 0 100 0 0 0 0 0 0\nintr 9\n";
  EXPECT_DOUBLE_EQ(idle_cores(before, after, {0}).value(), 0.5);
  EXPECT_DOUBLE_EQ(idle_cores(before, after, {0, 1, 2}).value(), 1.5);
  EXPECT_FALSE(idle_cores(before, after, {3}));
  EXPECT_FALSE(idle_cores(before, before, {0}));
  EXPECT_FALSE(idle_cores("", "", {0}));
}

TEST(Load, ACoreIsNotIdleWhileAThreadUsesIt) {
  std::thread([] {
    pin_to_cores({allowed_cores().front()});
    std::atomic<bool> over = false;
    std::atomic<bool> runs = false;
    std::thread other([&] {
      while (!over) runs = true;
    });
    while (!runs) std::this_thread::yield();
    if (const auto idle = idle_cores(std::chrono::milliseconds(200))) {
      EXPECT_LT(*idle, 0.5);
    }
    over = true;
    other.join();
  }).join();
}

TEST(Load, AThreadThatSharesItsCoreWaitsForIt) {
  std::thread([] {
    pin_to_cores({allowed_cores().front()});
    const CoreWait wait;
    std::atomic<int> turns = 0;
    const auto compute = [&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      while (std::chrono::steady_clock::now() < end) ++turns;
    };
    std::thread other(compute);
    compute();
    other.join();
    if (const auto share = wait.share()) {
      EXPECT_GT(*share, 0.1);
      EXPECT_LE(*share, 1);
    }
  }).join();
}

TEST(Load, IsNamedFromATenthOfTheTimeOn) {
  EXPECT_EQ(overload({}), "");
  EXPECT_EQ(overload(0.09), "");
  EXPECT_EQ(overload(0.432),
            "The load exceeds the cores: a rank waited for one 43 % of its time. Stop other "
            "programs.");
  EXPECT_LE(overload(1).size(), 100u);
}

}  // namespace
}  // namespace lockstep
