// SPDX-License-Identifier: BSD-3-Clause
// Ranks where there is no /dev/null, no /proc, or hardly a descriptor: containers are often so.
#include <array>

#include "support/limits.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mount.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// In a process of its own, from which the folder is hidden.
void run_without(const char* folder, const std::function<void()>& body) {
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!hide_folder(folder)) {
      rank.report("skipped");
      return;
    }
    body();
    // The leak sanitizer reads /proc at the end.
    ::umount2(folder, MNT_DETACH);
  });
  if (outcomes[0].result == "skipped") skip_or_fail("no namespaces of its own here");
}

TEST(BareMachine, WithoutDevNullRanksStillHaveNothingToRead) {
  run_without("/dev", [] {
    // What the launcher itself could read never ends.
    std::array<int, 2> endless{};
    ASSERT_EQ(::pipe(endless.data()), 0);
    ::dup2(endless[0], STDIN_FILENO);
    EXPECT_EQ(run_agent({.program = {"cat"}, .ranks = 2}).exit_code, 0);
  });
}

TEST(BareMachine, WithoutProcSpawnSaysWhatItCannotSee) {
  run_without("/proc", [] {
    EXPECT_THAT(
        [] { spawn(2, [](int) {}); },
        ThrowsMessage<BackendError>(AllOf(HasSubstr("spawn(2)"), HasSubstr("mount /proc"))));
    EXPECT_EQ(run_agent({.program = {"true"}, .ranks = 2}).exit_code, 0);
  });
}

TEST(BareMachine, AProcessThatHasOpenedAGpuForksNoRanks) {
  run_without("/dev", [] {
    const UniqueFd gpu(::open("/dev/nvidia0", O_CREAT | O_RDWR | O_CLOEXEC, 0600));
    ASSERT_TRUE(gpu);
    EXPECT_THAT([] { spawn(2, [](int) {}, {.start_method = StartMethod::fork}); },
                ThrowsMessage<UsageError>(HasSubstr("spawn(2): this process has used a GPU")));
  });
}

// The undefined-behaviour sanitizer takes descriptors to look at objects.
#if !defined(__SANITIZE_ADDRESS__)
TEST(BareMachine, TooFewDescriptorsForTheRanksAreALimitWithAName) {
  run_ranks(1, [](Rank&) {
    for (int more = 0; more <= 15; ++more) {
      const rlimit before = leave_no_descriptor(more);
      EXPECT_THAT(
          [] {
            run_agent({.program = {"sleep", "60"}, .ranks = 20});
          },
          ThrowsMessage<BackendError>(
              AllOf(HasSubstr("Too many open files"), HasSubstr("ulimit -n"))))
          << "with " << more << " descriptors";
      ::setrlimit(RLIMIT_NOFILE, &before);
    }
  });
}
#endif

}  // namespace
}  // namespace lockstep::testing
