// SPDX-License-Identifier: BSD-3-Clause
// Ranks that leave, die, stop, abort, or never come. The faults are real.
#include <csignal>
#include <thread>

#include "collective/conformance/conformance.h"
#include "collective/conformance/expect_error.h"
#include "collective/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Survivors must know of a death within this time.
constexpr auto kSoon = 2s;

std::string beginning(const Backend& backend, const Rank& rank, std::string_view operation) {
  return fmt::format("^\\[{}\\] {} #[0-9]+, rank {} of {}: ", backend.name, operation, rank.rank(),
                     rank.size());
}

// Expects PeerLost that names the victim, and that the group goes on saying so.
void expect_lost(Rank& rank, ProcessGroup& group, int victim,
                 const std::vector<std::string>& patterns, const std::function<void()>& function) {
  const PeerLost lost =
      error_of<PeerLost>(function, "the call that was under way", PeerLost(-1, ""));
  EXPECT_EQ(lost.rank(), victim) << lost.what();
  expect_message(lost.what(), patterns, "the call that was under way");
  expect_message(lost.what(), {fmt::format("rank {} \\(pid {}\\)", victim, rank.pid_of(victim))},
                 "the call that was under way");
  const PeerLost again = error_of<PeerLost>([&] { group.all_reduce(at::ones({3})).wait(); },
                                            "the next call", PeerLost(-1, ""));
  EXPECT_EQ(again.rank(), victim) << again.what();
  const auto begin = Clock::now();
  error_of<PeerLost>([&] { group.empty({3}, at::kFloat); }, "empty()", PeerLost(-1, ""));
  EXPECT_LT(Clock::now() - begin, kSoon);
}

// The first and the last rank, which a backend may treat as special.
std::vector<int> victims(int size) {
  return {0, size - 1};
}

TEST_P(FaultConformance, ARankThatLeavesIsNamed) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      auto group = join(rank);
      group->barrier().wait();
      if (rank.rank() == victim) {
        group.reset();
        rank.cue("left");
        // Lives on, so that it is the leaving that is seen, and not a death.
        for (int r = 0; r < rank.size(); ++r) {
          if (r != victim) rank.await(r, "seen");
        }
      } else {
        expect_lost(rank, *group, victim, {beginning(backend(), rank, "all_reduce")},
                    [&] { group->all_reduce(at::ones({100'000})).wait(); });
        group.reset();
        rank.cue("seen");
      }
    });
  }
}

TEST_P(FaultConformance, ARankThatLeavesDoesNotSpoilWorkThatItHasDone) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      for (const std::int64_t count : {10, 100'000}) {
        auto group = join(rank, {.place = fmt::format("group-{}", count)});
        const at::Tensor ordinary = at::ones({count});
        const at::Tensor shared = group->empty({count}, at::kFloat).fill_(1);
        Work work = group->all_reduce({ordinary, shared});
        // The others may still be about to see that it is done when the victim has gone.
        work.wait();
        if (rank.rank() == victim) group.reset();
        EXPECT_TRUE((ordinary == rank.size()).all().item<bool>());
        EXPECT_TRUE((shared == rank.size()).all().item<bool>());
        rank.cue(fmt::format("done with {}", count));
        for (int r = 0; r < rank.size(); ++r) rank.await(r, fmt::format("done with {}", count));
      }
    });
  }
}

TEST_P(FaultConformance, ARankKilledInTheMiddleOfAllReducesIsNamedWithItsPid) {
  for (const int victim : victims(size())) {
    const auto outcomes = run(
        [&](Rank& rank) {
          const auto group = join(rank);
          const at::Tensor ordinary = at::ones({400'000});
          const at::Tensor shared = group->empty({400'000}, at::kFloat).fill_(1);
          const at::Tensor tiny = at::ones({2});
          std::vector<std::string> patterns = {"killed by signal 9|SIGKILL|died|ended",
                                               beginning(backend(), rank, "all_reduce")};
          const auto reduce_for_ever = [&] {
            for (int round = 0;; ++round) {
              if (rank.rank() == victim && round == 20) rank.cue("in all_reduce");
              group->all_reduce({ordinary}, {.op = ReduceOp::max}).wait();
              group->all_reduce({shared}, {.op = ReduceOp::max}).wait();
              group->all_reduce({tiny}, {.op = ReduceOp::max}).wait();
            }
          };
          expect_lost(rank, *group, victim, patterns, reduce_for_ever);
          EXPECT_LT(rank.since_signal(victim), kSoon);
        },
        {.signals = {{.rank = victim, .cue = "in all_reduce", .signal = SIGKILL}}});
    EXPECT_EQ(outcomes[victim].signal, SIGKILL);
  }
}

// One more each round sleeps in its wait when the victim dies.
TEST_P(FaultConformance, ADeathWakesRanksThatSleepInAnyCollective) {
  const int victim = size() - 1;
  const std::vector<std::pair<std::string, std::function<void(ProcessGroup&)>>> calls = {
      {"all_reduce", [](auto& group) { group.all_reduce(at::ones({5})).wait(); }},
      {"all_reduce", [](auto& group) { group.all_reduce(at::ones({500'000})).wait(); }},
      {"broadcast", [&](auto& group) { group.broadcast(at::ones({5}), victim).wait(); }},
      {"all_gather",
       [](auto& group) {
         std::vector<at::Tensor> outputs;
         for (int r = 0; r < group.size(); ++r) outputs.push_back(at::ones({5}));
         group.all_gather(outputs, at::ones({5})).wait();
       }},
      {"reduce_scatter",
       [](auto& group) {
         group.reduce_scatter(at::ones({5}), std::vector(group.size(), at::ones({5}))).wait();
       }},
      {"barrier", [](auto& group) { group.barrier().wait(); }},
      {"empty", [](auto& group) { group.empty({100}, at::kFloat); }},
  };
  for (const auto& [name, call] : calls) {
    run(
        [&, name = name, call = call](Rank& rank) {
          rank.note(name);
          const auto group = join(rank);
          group->barrier().wait();
          if (rank.rank() == victim) {
            for (int r = 0; r < victim; ++r) rank.await(r, "calling");
            std::this_thread::sleep_for(100ms);  // until they sleep
            rank.cue("now");
            rank.await_signal();
          }
          rank.cue("calling");
          expect_lost(rank, *group, victim, {beginning(backend(), rank, name)},
                      [&] { call(*group); });
          EXPECT_LT(rank.since_signal(victim), kSoon);
        },
        {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
  }
}

TEST_P(FaultConformance, ADeathBetweenCallsIsSeenByTheNextOne) {
  const int victim = size() - 1;
  run(
      [&](Rank& rank) {
        const auto group = join(rank);
        group->barrier().wait();
        if (rank.rank() == victim) {
          rank.cue("now");
          rank.await_signal();
        }
        rank.await(victim, "now");
        expect_lost(rank, *group, victim, {beginning(backend(), rank, "broadcast")},
                    [&] { group->broadcast(at::ones({3}), victim).wait(); });
      },
      {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
}

TEST_P(FaultConformance, ARankThatOnlyPollsSeesADeath) {
  const int victim = size() - 1;
  run(
      [&](Rank& rank) {
        const auto group = join(rank);
        group->barrier().wait();
        if (rank.rank() == victim) {
          rank.cue("now");
          rank.await_signal();
        }
        const at::Tensor tensor = at::ones({100'000});
        expect_lost(rank, *group, victim, {beginning(backend(), rank, "all_reduce")}, [&] {
          Work work = group->all_reduce(tensor);
          const Deadline deadline = Deadline::after(20s);
          while (!work.poll() && !deadline.passed()) std::this_thread::yield();
        });
        EXPECT_LT(rank.since_signal(victim), kSoon);
      },
      {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
}

TEST_P(FaultConformance, AStoppedRankIsATimeoutThatNamesIt) {
  for (const int victim : victims(size())) {
    run(
        [&](Rank& rank) {
          auto group = join(rank, {.timeout = 1s});
          group->barrier().wait();
          if (rank.rank() == victim) {
            rank.cue("now");
            rank.await_signal();
          }
          rank.await(victim, "now");
          const auto begin = Clock::now();
          const std::string message = expect_error<TimeoutError>(
              "a stopped rank",
              {beginning(backend(), rank, "all_reduce"), fmt::format("rank {} ", victim)},
              [&] { group->all_reduce(at::ones({3})).wait(); });
          const auto took = Clock::now() - begin;
          EXPECT_GE(took, 900ms);
          EXPECT_LT(took, 10s);
          expect_error<TimeoutError>("the next call", {fmt::format("rank {} ", victim)},
                                     [&] { group->barrier().wait(); });
          const auto end = Clock::now();
          group.reset();
          EXPECT_LT(Clock::now() - end, 5s) << "to leave the group";
        },
        {.signals = {{.rank = victim, .cue = "now", .signal = SIGSTOP}}});
  }
}

TEST_P(FaultConformance, AWaitMayHaveADeadlineOfItsOwn) {
  run([&](Rank& rank) {
    auto group = join(rank);
    const int late = rank.size() - 1;
    if (rank.rank() == late) {
      for (int r = 0; r < late; ++r) rank.await(r, "gave up");
    } else {
      const auto begin = Clock::now();
      Work work = group->all_reduce(at::ones({3}));
      expect_error<TimeoutError>(
          "wait(200 ms)", {beginning(backend(), rank, "all_reduce"), fmt::format("rank {}", late)},
          [&] { work.wait(Deadline::after(200ms)); });
      EXPECT_GE(Clock::now() - begin, 190ms);
      EXPECT_LT(Clock::now() - begin, 10s);
      rank.cue("gave up");
    }
  });
}

TEST_P(FaultConformance, AbortWakesEveryRankWithTheReason) {
  for (const int aborter : victims(size())) {
    run([&](Rank& rank) {
      const auto group = join(rank);
      group->barrier().wait();
      // The last rank does not call, so that the others wait for ever.
      const int absent = rank.size() - 1;
      std::jthread thread;
      if (rank.rank() == aborter) {
        thread = std::jthread([&] {
          for (int r = 0; r < absent; ++r) rank.await(r, "calling");
          std::this_thread::sleep_for(100ms);  // until they sleep
          group->abort("the loss is not a number");
          rank.cue("aborted");
        });
      }
      if (rank.rank() == absent) {
        if (aborter == absent) {
          thread.join();
        } else {
          rank.await(aborter, "aborted");
        }
      } else {
        rank.cue("calling");
      }
      for (const char* what : {"the call that was under way", "the next call"}) {
        const auto begin = Clock::now();
        const std::string message = expect_error<PeerLost>(
            what,
            {"the loss is not a number", fmt::format("rank {} of {}", rank.rank(), rank.size())},
            [&] { group->all_reduce(at::ones({3})).wait(); });
        EXPECT_LT(Clock::now() - begin, 10s);
      }
    });
  }
}

TEST_P(FaultConformance, ARankThatNeverJoinsIsNamed) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      if (rank.rank() == victim) return;
      const auto begin = Clock::now();
      expect_error<TimeoutError>("joining",
                                 {fmt::format("rank {}[^0-9]", victim),
                                  fmt::format("rank {} of {}", rank.rank(), rank.size())},
                                 [&] { join(rank, {.timeout = 500ms}); });
      EXPECT_GE(Clock::now() - begin, 400ms);
      EXPECT_LT(Clock::now() - begin, 10s);
    });
  }
}

TEST_P(FaultConformance, GroupsThatLostARankAreLeftInBoundedTime) {
  const int victim = size() - 1;
  run(
      [&](Rank& rank) {
        auto group = join(rank);
        const at::Tensor shared = group->empty({1000}, at::kFloat).fill_(rank.rank());
        group->barrier().wait();
        if (rank.rank() == victim) {
          rank.cue("now");
          rank.await_signal();
        }
        rank.await(victim, "now");
        const auto begin = Clock::now();
        {
          const at::Tensor tensor = at::ones({100'000});
          const Work dropped = group->all_reduce(tensor);
          const Work second = group->all_reduce(shared);
          group.reset();
        }
        EXPECT_LT(Clock::now() - begin, kSoon);
        // The group's memory is there as long as its tensors are.
        EXPECT_EQ(shared.numel(), 1000);
        shared.fill_(1);
      },
      {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
}

TEST_P(FaultConformance, ALostGroupDoesNotHarmAnother) {
  run([&](Rank& rank) {
    auto lost = join(rank, {.place = "lost"});
    const auto good = join(rank, {.place = "good"});
    const int victim = rank.size() - 1;
    if (rank.rank() == victim) {
      lost.reset();
    } else {
      error_of<PeerLost>([&] { lost->barrier().wait(); }, "the lost group", PeerLost(-1, ""));
    }
    const at::Tensor tensor = at::ones({1000});
    good->all_reduce(tensor).wait();
    EXPECT_TRUE((tensor == rank.size()).all().item<bool>());
  });
}

}  // namespace
}  // namespace lockstep::testing
