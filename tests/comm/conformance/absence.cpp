// SPDX-License-Identifier: BSD-3-Clause
// Ranks that leave, abort, or do not call, without a death.
#include <thread>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "comm/conformance/expect_lost.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST_P(AbsenceConformance, ARankThatLeavesIsNamed) {
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

// The group cannot read the text of an exception that unwinds, but can in a handler.
TEST_P(AbsenceConformance, ARankThatAnExceptionEndsHasFailed) {
  for (const bool handled : {false, true}) {
    run([&](Rank& rank) {
      auto group = join(rank);
      group->barrier().wait();
      const int victim = rank.size() - 1;
      if (rank.rank() == victim) {
        // A failure ends every call, also a barrier whose last bytes are still on their way.
        for (int r = 0; r < victim; ++r) rank.await(r, "past the barrier");
        try {
          const auto own = handled ? nullptr : std::move(group);
          throw std::runtime_error("its own fault");
        } catch (const std::runtime_error&) {
          group.reset();
        }
        rank.cue("failed");
        for (int r = 0; r < victim; ++r) rank.await(r, "seen");
      } else {
        rank.cue("past the barrier");
        const std::string words = handled ? "an exception ended it: its own fault"
                                          : "an exception ended it; its output says which";
        expect_lost(rank, *group, victim,
                    {beginning(backend(), rank, "all_reduce"),
                     "failed before it made or finished this call: " + words},
                    [&] { group->all_reduce(at::ones({100'000})).wait(); });
        group.reset();
        rank.cue("seen");
      }
    });
  }
}

TEST_P(AbsenceConformance, ARankThatLeavesDoesNotSpoilWorkThatItHasDone) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      for (const std::int64_t count : {10, 100'000}) {
        auto group = join(rank, {.key = fmt::format("group-{}", count)});
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

TEST_P(AbsenceConformance, AWaitMayHaveADeadlineOfItsOwn) {
  run([&](Rank& rank) {
    auto group = join(rank);
    const int late = rank.size() - 1;
    // Before any rank waits: the first that gives up ends the wait of the others.
    const auto begin = Clock::now();
    group->barrier().wait();
    if (rank.rank() == late) {
      for (int r = 0; r < late; ++r) rank.await(r, "gave up");
    } else {
      expect_error<TimeoutError>(
          "wait(200 ms)",
          {beginning(backend(), rank, "all_reduce"), fmt::format("rank {}", late),
           // The time that this rank waited, or that the rank waited that gave up first.
           "waited (0\\.[2-9]|[1-9].*) s for rank"},
          [&] { group->all_reduce(at::ones({3})).wait(Deadline::after(200ms)); });
      EXPECT_GE(Clock::now() - begin, 200ms);
      EXPECT_LT(Clock::now() - begin, 10s);
      rank.cue("gave up");
    }
  });
}

// No rank can tell at once that these calls never match: another thread may yet make the right
// ones.
TEST_P(AbsenceConformance, AMessageAndACollectiveThatWaitForEachOtherAreBothNamed) {
  if (backend().name == "hierarchical") {
    GTEST_SKIP() << "its collectives are several, on groups that know of no message";
  }
  const std::vector<std::pair<std::string, std::function<Work(ProcessGroup&)>>> messages = {
      {"recv", [](auto& group) { return group.recv(at::ones({7}), 1); }},
      {"send", [](auto& group) { return group.send(at::ones({1'000'000}), 1); }}};
  for (const auto& [name, message] : messages) {
    run([&, name = name, message = message](Rank& rank) {
      const auto group = join(rank, {.timeout = kShortTimeout});
      group->barrier().wait();
      expect_error<TimeoutError>(
          name + " and all_reduce",
          {beginning(backend(), rank, rank.rank() == 0 ? name : "all_reduce"), name + " #1",
           "all_reduce #[0-9]+", "last seen waiting in"},
          [&] {
            Work work = rank.rank() == 0 ? message(*group) : group->all_reduce(at::ones({3}));
            work.wait();
          });
    });
  }
}

// Whatever else is still under way.
TEST_P(AbsenceConformance, ALateMessageNamesItsPeer) {
  if (size() < 3) GTEST_SKIP() << "this takes two peers";
  run([&](Rank& rank) {
    auto group = join(rank);
    group->barrier().wait();
    if (rank.rank() == 0) {
      const Work earlier = group->recv(at::ones({3}), 1);
      Work late = group->recv(at::ones({3}), 2);
      expect_error<TimeoutError>("wait(200 ms)", {beginning(backend(), rank, "recv"), "rank 2"},
                                 [&] { late.wait(Deadline::after(200ms)); });
      rank.cue("gave up");
    } else {
      rank.await(0, "gave up");
    }
  });
}

TEST_P(AbsenceConformance, AbortWakesEveryRankWithTheReason) {
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

TEST_P(AbsenceConformance, ALostGroupDoesNotHarmAnother) {
  run([&](Rank& rank) {
    auto lost = join(rank, {.key = "lost"});
    const auto good = join(rank, {.key = "good"});
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

TEST_P(AbsenceConformance, AnExceptionEndsTheOthers) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      const at::Tensor tensor = at::ones({100'000});
      const auto train = [&] {
        const auto group = join(rank);
        for (int stage = 0; stage < 10; ++stage) {
          Work work = group->all_reduce(tensor, {.op = ReduceOp::mean});
          if (stage == 5 && rank.rank() == victim) throw std::out_of_range("the user's mistake");
          work.wait();
        }
      };
      if (rank.rank() == victim) {
        EXPECT_THROW(train(), std::out_of_range);
        for (int r = 0; r < rank.size(); ++r) {
          if (r != victim) rank.await(r, "seen");
        }
      } else {
        const PeerLost lost = error_of<PeerLost>(train, "all_reduce", PeerLost(-1, ""));
        EXPECT_EQ(lost.rank(), victim) << lost.what();
        rank.cue("seen");
      }
    });
  }
}

TEST_P(AbsenceConformance, ARankThatIsAbsentFromASplitIsNamed) {
  run([&](Rank& rank) {
    const auto group = join(rank, {.timeout = kShortTimeout});
    const int absent = rank.size() - 1;
    if (rank.rank() == absent) {
      for (int r = 0; r < absent; ++r) rank.await(r, "gave up");
      return;
    }
    expect_error<TimeoutError>(
        "split", {beginning(backend(), rank, "split"), fmt::format("rank {}", absent)},
        [&] { group->split({0}); });
    rank.cue("gave up");
  });
}

TEST_P(AbsenceConformance, ARankThatDoesNotCallIsATimeoutThatNamesIt) {
  for (const int victim : victims(size())) {
    run([&](Rank& rank) {
      auto group = join(rank, {.timeout = kShortTimeout});
      const auto begin = Clock::now();  // before any rank waits
      group->barrier().wait();
      if (rank.rank() == victim) {
        for (int r = 0; r < rank.size(); ++r) {
          if (r != victim) rank.await(r, "left");
        }
        return;
      }
      expect_error<TimeoutError>(
          "an absent rank",
          {beginning(backend(), rank, "all_reduce"), fmt::format("rank {}", victim)},
          [&] { group->all_reduce(at::ones({3})).wait(); });
      EXPECT_GE(Clock::now() - begin, kShortTimeout);
      EXPECT_LT(Clock::now() - begin, kLongBeforeTimeout);
      expect_error<TimeoutError>("the next call", {fmt::format("rank {}", victim)},
                                 [&] { group->barrier().wait(); });
      const auto end = Clock::now();
      group.reset();
      EXPECT_LT(Clock::now() - end, 5s) << "to leave the group";
      rank.cue("left");
    });
  }
}

}  // namespace
}  // namespace lockstep::testing
