// SPDX-License-Identifier: BSD-3-Clause
// run_ranks itself: results, failures, cues and deadlines.
#include "support/rank_processes.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/process_table.h"
#include "support/skip_or_fail.h"
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

// The failures of this test that the function makes, instead of failing.
std::vector<std::string> failures_of(const std::function<void()>& function) {
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &results);
    ::testing::ScopedFakeTestPartResultReporter this_thread(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    function();
  }
  std::vector<std::string> messages;
  for (int i = 0; i < results.size(); ++i)
    messages.push_back(results.GetTestPartResult(i).message());
  return messages;
}

TEST(RankProcesses, HandBackResultsInTheOrderOfTheRanks) {
  const std::string large(1 << 20, 'x');
  const auto outcomes = run_ranks(3, [&](Rank& rank) {
    EXPECT_EQ(rank.size(), 3);
    EXPECT_EQ(rank.pid_of(rank.rank()), getpid());
    rank.report(std::to_string(rank.rank()) + large);
  });
  ASSERT_EQ(outcomes.size(), 3u);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(outcomes[rank].result, std::to_string(rank) + large);
    EXPECT_EQ(outcomes[rank].exit_code, 0);
  }
}

TEST(RankProcesses, ShareAFolderThatIsRemoved) {
  const auto outcomes = run_ranks(2, [](Rank& rank) {
    std::ofstream(rank.folder() + "/" + std::to_string(rank.rank())) << "here";
    EXPECT_EQ(rank.rendezvous_url("a"), "file://" + rank.folder() + "/a");
    rank.report(rank.folder());
  });
  EXPECT_EQ(outcomes[0].result, outcomes[1].result);
  EXPECT_FALSE(outcomes[0].result.empty());
  EXPECT_FALSE(std::filesystem::exists(outcomes[0].result));
}

TEST(RankProcesses, BringFailuresToTheTestWithTheRankNamed) {
  const auto failures = failures_of([] {
    run_ranks(2, [](Rank& rank) {
      EXPECT_EQ(rank.rank(), 0) << "from the rank";
      EXPECT_EQ(rank.failed(), rank.rank() == 1);
      std::thread([&] { EXPECT_EQ(rank.rank(), 0) << "from its thread"; }).join();
    });
  });
  EXPECT_THAT(failures,
              ::testing::ElementsAre(AllOf(HasSubstr("rank 1 of 2"), HasSubstr("from the rank")),
                                     AllOf(HasSubstr("rank 1 of 2"), HasSubstr("its thread"))));
}

TEST(RankProcesses, TellErrorsByTypeAndText) {
  const auto outcomes = run_ranks(3,
                                  [](Rank& rank) {
                                    if (rank.rank() == 0) throw PeerLost(7, "lost");
                                    if (rank.rank() == 1) throw UsageError("wrong");
                                    throw std::out_of_range("far");
                                  },
                                  {.errors_are_outcomes = true});
  EXPECT_EQ(outcomes[0].error_type, "PeerLost");
  EXPECT_EQ(outcomes[0].lost_rank, 7);
  EXPECT_EQ(outcomes[0].error, "lost");
  EXPECT_EQ(outcomes[1].error_type, "UsageError");
  EXPECT_EQ(outcomes[2].error_type, "std::out_of_range");
  const auto failures = failures_of([] { run_ranks(1, [](Rank&) { throw UsageError("wrong"); }); });
  EXPECT_THAT(failures,
              ::testing::ElementsAre(HasSubstr("rank 0 of 1 ended with UsageError: wrong")));
}

TEST(RankProcesses, FailTheTestWhenARankDies) {
  const auto failures = failures_of([] {
    run_ranks(2, [](Rank& rank) {
      rank.note("dividing");
      if (rank.rank() == 0) raise(SIGTERM);
      _exit(3);
    });
  });
  EXPECT_THAT(failures,
              ::testing::ElementsAre(
                  AllOf(HasSubstr("rank 0 of 2 was killed by signal 15"), HasSubstr("dividing")),
                  HasSubstr("rank 1 of 2 left its process with exit code 3")));
}

TEST(RankProcesses, AreKilledOnCue) {
  const auto outcomes = run_ranks(2,
                                  [](Rank& rank) {
                                    if (rank.rank() == 0) {
                                      EXPECT_EQ(rank.since_signal(1), 0ms);
                                      rank.cue("ready");
                                      rank.await(1, "there");
                                      EXPECT_GT(rank.since_signal(1), 0ms);
                                      rank.report("survived");
                                    } else {
                                      rank.await(0, "ready");
                                      rank.cue("there");
                                      rank.await_signal();
                                    }
                                  },
                                  {.signals = {{.rank = 1, .cue = "there", .signal = SIGKILL}}});
  EXPECT_EQ(outcomes[0].result, "survived");
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

// Returns once the test has seen the other rank's end.
void await_end_of(const Rank& rank, int other) {
  EXPECT_TRUE(eventually([&] { return rank.since_end(other) > 0ms; }));
}

TEST(RankProcesses, KnowHowLongAgoAnotherEnded) {
  run_ranks(2, [](Rank& rank) {
    if (rank.rank() == 1) return rank.await(0, "alone soon");
    EXPECT_EQ(rank.since_end(1), 0ms);
    rank.cue("alone soon");
    await_end_of(rank, 1);
    EXPECT_TRUE(eventually([&] { return rank.since_end(1) >= 300ms; }));
  });
}

TEST(RankProcesses, DoNotCountTheTimeWithoutACoreSinceAnotherEnded) {
  if (!std::filesystem::exists("/proc/self/schedstat")) {
    return skip_or_fail("this kernel does not count how long processes wait for a core");
  }
  run_ranks(2, [](Rank& rank) {
    if (rank.rank() == 1) return;
    await_end_of(rank, 1);
    cpu_set_t one_core;
    CPU_ZERO(&one_core);
    CPU_SET(::sched_getcpu(), &one_core);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one_core, &one_core), 0);
    const pid_t rival = ::fork();
    ASSERT_GE(rival, 0);
    if (rival == 0) {
      ::alarm(10);
      while (true) asm volatile("");
    }
    const auto before = rank.since_end(1);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < 500ms) continue;
    EXPECT_LT(rank.since_end(1) - before, 400ms);
    ::kill(rival, SIGKILL);
    ::waitpid(rival, nullptr, 0);
  });
}

TEST(RankProcesses, ThatWereStoppedAreKilledWhenTheOthersHaveEnded) {
  const auto outcomes = run_ranks(2,
                                  [](Rank& rank) {
                                    if (rank.rank() == 0) return rank.await(1, "there");
                                    rank.cue("there");
                                    rank.await_signal();
                                  },
                                  {.signals = {{.rank = 1, .cue = "there", .signal = SIGSTOP}}});
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

TEST(RankProcesses, FailTheTestWhenACueNeverComes) {
  const auto failures = failures_of([] {
    run_ranks(1, [](Rank&) {}, {.signals = {{.rank = 0, .cue = "there", .signal = SIGKILL}}});
  });
  EXPECT_THAT(failures, ::testing::ElementsAre(HasSubstr("rank 0 of 1 never announced \"there\"")));
}

TEST(RankProcesses, AreEndedAtTheDeadlineWithWhatTheyWereDoing) {
  const auto failures = failures_of([] {
    const auto outcomes = run_ranks(2,
                                    [](Rank& rank) {
                                      rank.note("looping");
                                      while (rank.rank() == 1) pause();
                                    },
                                    {.deadline = 5000ms});
    if (outcomes[1].signal != SIGKILL) throw std::runtime_error("rank 1 was not killed");
  });
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_THAT(failures[0],
              AllOf(HasSubstr("2 ranks did not end within 5000 ms"), HasSubstr("rank 0 of 2"),
                    HasSubstr("ended"), HasSubstr("rank 1 of 2"), HasSubstr("S (sleeping)"),
                    HasSubstr("looping")));
}

}  // namespace
}  // namespace lockstep::testing
