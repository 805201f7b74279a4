// SPDX-License-Identifier: BSD-3-Clause
// Ranks that die, stop, or never come. The faults are real.
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "comm/conformance/expect_lost.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/process/process_watch.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Small and large ones, in memory of both kinds. The victim announces when it is among them.
void reduce_for_ever(Rank& rank, ProcessGroup& group, int victim,
                     Algorithm algorithm = Algorithm::automatic) {
  const at::Tensor ordinary = at::ones({400'000});
  const at::Tensor shared = group.empty({400'000}, at::kFloat).fill_(1);
  const at::Tensor tiny = at::ones({2});
  for (int round = 0;; ++round) {
    if (rank.rank() == victim && round == 20) rank.cue("in all_reduce");
    for (const at::Tensor& tensor : {ordinary, shared, tiny}) {
      group.all_reduce(tensor, {.op = ReduceOp::max, .algorithm = algorithm}).wait();
    }
  }
}

TEST_P(FaultConformance, ARankKilledInTheMiddleOfAllReducesIsNamedWithItsPid) {
  for (const int victim : victims(size())) {
    // Of a crash by SIGSEGV, a sanitizer would write a report, for seconds in which the rank lives.
    for (const int signal : {SIGKILL, SIGABRT}) {
      const auto outcomes = run(
          [&](Rank& rank) {
            const auto group = join(rank);
            expect_lost(rank, *group, victim,
                        {died_before(backend()), beginning(backend(), rank, "all_reduce")},
                        [&] { reduce_for_ever(rank, *group, victim); });
            expect_soon(rank, victim);
          },
          {.signals = {{.rank = victim, .cue = "in all_reduce", .signal = signal}}});
      EXPECT_EQ(outcomes[victim].signal, signal);
    }
  }
}

TEST_P(FaultConformance, ARankKilledInTheMiddleOfRingsIsNamedWithItsPid) {
  for (const int victim : victims(size())) {
    run(
        [&](Rank& rank) {
          const auto group = join(rank);
          expect_lost(rank, *group, victim, {"died|ended", beginning_of_ring(backend(), rank)},
                      [&] { reduce_for_ever(rank, *group, victim, Algorithm::ring); });
          expect_soon(rank, victim);
        },
        {.signals = {{.rank = victim, .cue = "in all_reduce", .signal = SIGKILL}}});
  }
}

TEST_P(FaultConformance, ARankKilledAmongStepsOfAShardedOptimizerIsNamed) {
  const int victim = size() - 1;
  run(
      [&](Rank& rank) {
        const auto group = join(rank);
        const bool stores_directly =
            !group->symmetric_memory(group->empty({1}, at::kFloat)).empty();
        const at::Tensor parameter = at::zeros({400'000}).set_requires_grad(true);
        parameter.mutable_grad() = at::ones_like(parameter);
        optim::Adam optimizer({parameter}, 0.1, group);
        const std::string_view waits_in = stores_directly ? "(all_reduce|barrier)" : "all_gather";
        expect_lost(rank, *group, victim,
                    {died_before(backend()),
                     beginning(backend(), rank, waits_in, " of an optimizer's step\\(\\)")},
                    [&] {
                      for (int round = 0;; ++round) {
                        if (rank.rank() == victim && round == 20) rank.cue("in step");
                        optimizer.step();
                      }
                    });
        expect_soon(rank, victim);
        // No rank that is still in its step can store anything there.
        EXPECT_TRUE(group->symmetric_memory(parameter).empty());
      },
      {.signals = {{.rank = victim, .cue = "in step", .signal = SIGKILL}}});
}

TEST_P(FaultConformance, ARankStoppedInTheMiddleOfAllReducesIsATimeoutThatNamesIt) {
  for (const int victim : victims(size())) {
    run(
        [&](Rank& rank) {
          const auto group = join(rank, {.timeout = kShortTimeout});
          expect_error<TimeoutError>(
              "a stopped rank",
              {beginning(backend(), rank, "all_reduce"), fmt::format("rank {} ", victim)},
              [&] { reduce_for_ever(rank, *group, victim); });
          EXPECT_LT(rank.since_signal(victim), kLongBeforeTimeout);
        },
        {.signals = {{.rank = victim, .cue = "in all_reduce", .signal = SIGSTOP}}});
  }
}

TEST_P(FaultConformance, ARankThatExitsInTheMiddleOfAllReducesIsNamed) {
  for (const int victim : victims(size())) {
    const auto outcomes = run(
        [&](Rank& rank) {
          const auto group = join(rank);
          const at::Tensor tensor = at::ones({400'000});
          expect_lost(rank, *group, victim, {beginning(backend(), rank, "all_reduce")}, [&] {
            for (int round = 0;; ++round) {
              Work work = group->all_reduce(tensor, {.op = ReduceOp::max});
              if (rank.rank() == victim && round == 20) std::exit(3);
              work.wait();
            }
          });
        },
        {.may_exit = {victim}});
    EXPECT_EQ(outcomes[victim].exit_code, 3) << "signal " << outcomes[victim].signal;
  }
}

// As a program that catches no exceptions does: it aborts the group and dies at once.
TEST_P(FaultConformance, ARankThatEndsTheGroupAndDiesHasSaidWhy) {
  for (const int victim : victims(size())) {
    run(
        [&](Rank& rank) {
          const ProcessWatch watch(rank.pid_of(victim));
          const auto group = join(rank);
          if (rank.rank() == victim) {
            group->abort("the disk is full");
            rank.cue("aborted");
            rank.await_signal();
          }
          rank.await(victim, "aborted");
          EXPECT_TRUE(watch.has_ended(10s));
          expect_error<PeerLost>("a rank that ended the group",
                                 {"the disk is full", fmt::format("rank {} ", victim)},
                                 [&] { group->barrier().wait(); });
        },
        {.signals = {{.rank = victim, .cue = "aborted", .signal = SIGKILL}}});
  }
}

// One more each round sleeps in its wait when the victim dies.
TEST_P(FaultConformance, ADeathWakesRanksThatSleepInAnyCollective) {
  const int victim = size() - 1;
  const std::string by_a_ring = "all_reduce by a ring";
  const std::vector<std::pair<std::string, std::function<void(ProcessGroup&)>>> calls = {
      {"all_reduce", [](auto& group) { group.all_reduce(at::ones({5})).wait(); }},
      {"all_reduce", [](auto& group) { group.all_reduce(at::ones({500'000})).wait(); }},
      {by_a_ring,
       [](auto& group) {
         group.all_reduce(at::ones({500'000}), {.algorithm = Algorithm::ring}).wait();
       }},
      {"broadcast", [&](auto& group) { group.broadcast(at::ones({5}), victim).wait(); }},
      // A rank may be done before root has what it gives.
      {"(reduce|barrier)",
       [&](auto& group) {
         group.reduce(at::ones({500'000}), victim).wait();
         group.barrier().wait();
       }},
      {"(gather|barrier)",
       [&](auto& group) {
         group.gather(kNoTensors, at::ones({5}), victim).wait();
         group.barrier().wait();
       }},
      {"scatter", [&](auto& group) { group.scatter(at::ones({5}), kNoTensors, victim).wait(); }},
      {"all_to_all",
       [](auto& group) {
         const std::vector pieces(group.size(), at::ones({5}));
         group.all_to_all(pieces, pieces).wait();
       }},
      {"recv", [&](auto& group) { group.recv(at::ones({5}), victim).wait(); }},
      {"send", [&](auto& group) { group.send(at::ones({1'000'000}), victim).wait(); }},
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
      {"split", [](auto& group) { group.split({0}); }},
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
          const std::string begins = name == by_a_ring ? beginning_of_ring(backend(), rank)
                                                       : beginning(backend(), rank, name);
          expect_lost(rank, *group, victim, {begins}, [&] { call(*group); });
          expect_soon(rank, victim);
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

// A child that was forked without exec has all that its parent had open.
TEST_P(FaultConformance, ADeathIsSeenThoughAChildLivesOn) {
  const int victim = size() - 1;
  run(
      [&](Rank& rank) {
        const auto group = join(rank);
        group->barrier().wait();
        const std::string seen = rank.folder() + "/seen";
        if (rank.rank() == victim) {
          if (::fork() == 0) {
            const Deadline after_timeout = Deadline::after(40s);
            while (!after_timeout.passed() && ::access(seen.c_str(), F_OK) != 0) {
              std::this_thread::sleep_for(50ms);
            }
            ::_exit(0);
          }
          rank.cue("now");
          rank.await_signal();
        }
        rank.await(victim, "now");
        expect_lost(rank, *group, victim, {beginning(backend(), rank, "barrier")},
                    [&] { group->barrier().wait(); });
        expect_soon(rank, victim);
        std::ofstream(seen) << "the child may end";
      },
      {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
}

TEST_P(FaultConformance, AChildThatLeavesIsNotTheRank) {
  run([this](Rank& rank) {
    auto group = join(rank);
    group->barrier().wait();
    const pid_t child = ::fork();
    if (child == 0) {
      group.reset();
      ::_exit(0);
    }
    ::waitpid(child, nullptr, 0);
    // The others wait, and look whether this rank is still there.
    if (rank.rank() == 0) std::this_thread::sleep_for(200ms);
    const at::Tensor tensor = at::ones({100});
    for (int round = 0; round < 3; ++round) group->all_reduce(tensor).wait();
    EXPECT_EQ(tensor[0].item<int>(), rank.size() * rank.size() * rank.size());
  });
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
          while (!work.poll() && !deadline.passed()) std::this_thread::sleep_for(1ms);
        });
        expect_soon(rank, victim);
      },
      {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
}

TEST_P(FaultConformance, AStoppedRankIsATimeoutThatNamesIt) {
  for (const int victim : victims(size())) {
    run(
        [&](Rank& rank) {
          auto group = join(rank, {.timeout = kShortTimeout});
          const auto begin = Clock::now();  // before any rank waits
          group->barrier().wait();
          if (rank.rank() == victim) {
            rank.cue("now");
            rank.await_signal();
          }
          rank.await(victim, "now");
          expect_error<TimeoutError>(
              "a stopped rank",
              {beginning(backend(), rank, "all_reduce"), fmt::format("rank {} ", victim),
               "waited ([5-9]|[1-9][0-9]).* s for rank"},
              [&] { group->all_reduce(at::ones({3})).wait(); });
          EXPECT_GE(Clock::now() - begin, kShortTimeout);
          EXPECT_LT(Clock::now() - begin, kLongBeforeTimeout);
          expect_error<TimeoutError>("the next call", {fmt::format("rank {} ", victim)},
                                     [&] { group->barrier().wait(); });
          const auto end = Clock::now();
          group.reset();
          EXPECT_LT(Clock::now() - end, 5s) << "to leave the group";
        },
        {.signals = {{.rank = victim, .cue = "now", .signal = SIGSTOP}}});
  }
}

TEST_P(FaultConformance, ARankThatNeverJoinsIsNamed) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      if (rank.rank() == victim) return;
      const auto begin = Clock::now();  // before any rank waits
      rank.cue("joining");
      for (int r = 0; r < rank.size(); ++r) {
        if (r != victim) rank.await(r, "joining");
      }
      expect_error<TimeoutError>("joining",
                                 {fmt::format("rank {}[^0-9]", victim),
                                  fmt::format("rank {} of {}", rank.rank(), rank.size())},
                                 [&] { join(rank, {.timeout = kShortTimeout}); });
      EXPECT_GE(Clock::now() - begin, kShortTimeout);
      EXPECT_LT(Clock::now() - begin, kLongBeforeTimeout);
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
        try {
          const at::Tensor tensor = at::ones({100'000});
          const Work dropped = group->all_reduce(tensor);
          const Work second = group->all_reduce(shared);
          group.reset();
        } catch (const PeerLost&) {
          // Another rank saw it first, and has ended the group before this one's call.
          group.reset();
        }
        EXPECT_LT(Clock::now() - begin, kLongBeforeTimeout);
        // The group's memory is there as long as its tensors are.
        EXPECT_EQ(shared.numel(), 1000);
        shared.fill_(1);
      },
      {.signals = {{.rank = victim, .cue = "now", .signal = SIGKILL}}});
}

}  // namespace
}  // namespace lockstep::testing
