// SPDX-License-Identifier: BSD-3-Clause
// The thread backend does what every backend must do, between threads of one process.
#include <condition_variable>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "support/captured_warnings.h"
#include "support/rank_state.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

// Where the threads of a test rendezvous: the first one with a key makes the groups of all.
class Lobby {
 public:
  std::shared_ptr<ProcessGroup> join(int rank, int size, const JoinOptions& options) {
    const std::lock_guard lock(mutex_);
    auto& gathering = gatherings_[options.key];
    if (gathering.missing == 0) {
      gathering.groups = make_thread_groups(size, {.timeout = options.timeout});
      gathering.missing = size;
    }
    auto group = std::move(gathering.groups[static_cast<std::size_t>(rank)]);
    if (--gathering.missing == 0) gatherings_.erase(options.key);
    return group;
  }

 private:
  struct Gathering {
    std::vector<std::shared_ptr<ProcessGroup>> groups;
    int missing = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Gathering> gatherings_;
};

Lobby& lobby() {
  static Lobby lobby;
  return lobby;
}

// What the threads of a test have announced.
class Cues {
 public:
  void announce(int rank, std::string_view cue) {
    const std::lock_guard lock(mutex_);
    announced_.emplace(rank, cue);
    changed_.notify_all();
  }
  void wait_for(int rank, std::string_view cue) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return announced_.contains({rank, std::string(cue)}); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::pair<int, std::string>> announced_;
};

struct ThreadState : Rank::State {
  explicit ThreadState(Cues& cues) : cues_of_all(cues) {}
  void announce(std::string_view cue) override { cues_of_all.announce(rank, cue); }
  void wait_for(int rank, std::string_view cue) override { cues_of_all.wait_for(rank, cue); }

  Cues& cues_of_all;
};

// In a process of their own: other tests of this program fork ranks, and must not have threads.
std::vector<RankOutcome> run_threads(int size, const std::function<void(Rank&)>& function,
                                     const LaunchOptions& options, std::source_location where) {
  const auto run_all = [&](Rank& process) {
    std::vector<BoardEntry> board(static_cast<std::size_t>(size));
    Cues cues;
    std::vector<std::unique_ptr<ThreadState>> states;
    std::vector<std::jthread> threads;
    for (int number = 0; number < size; ++number) {
      auto& state = *states.emplace_back(std::make_unique<ThreadState>(cues));
      state.rank = number;
      state.size = size;
      state.folder = process.folder();
      state.board = board.data();
      threads.emplace_back([&function, &state] {
        Rank rank(state);
        try {
          function(rank);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank.rank() << ": " << error.what();
        }
      });
    }
  };
  return run_ranks(1, run_all, options, where);
}

const TestedBackend kThread = {.name = "thread",
                               .join =
                                   [](Rank& rank, const JoinOptions& options) {
                                     return lobby().join(rank.rank(), rank.size(), options);
                                   },
                               .shares_memory = true,
                               .run = run_threads};

INSTANTIATE_TEST_SUITE_P(thread, ResultsConformance, ::testing::ValuesIn(cases(kThread, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(thread, LifetimeConformance,
                         ::testing::ValuesIn(cases(kThread, {2, 3, 4})), case_name);
INSTANTIATE_TEST_SUITE_P(thread, AbsenceConformance, ::testing::ValuesIn(cases(kThread, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(thread, CallsConformance, ::testing::ValuesIn(cases(kThread, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(thread, OversubscriptionConformance,
                         ::testing::ValuesIn(cases(kThread, {24})), case_name);
INSTANTIATE_TEST_SUITE_P(thread, TrainingConformance, ::testing::ValuesIn(cases(kThread, {2, 3})),
                         case_name);

TEST(ThreadGroup, AnExitOfOneRankEndsAllWithItsCode) {
  const auto outcomes = run_threads(
      2,
      [](Rank& rank) {
        const auto group = lobby().join(rank.rank(), rank.size(), {});
        const at::Tensor tensor = at::ones({400'000});
        for (int round = 0;; ++round) {
          Work work = group->all_reduce(tensor, {.op = ReduceOp::max});
          if (rank.rank() == 1 && round == 20) std::exit(3);
          work.wait();
        }
      },
      {.may_exit = {0}}, std::source_location::current());
  EXPECT_EQ(outcomes[0].exit_code, 3);
  EXPECT_EQ(outcomes[0].signal, 0);
}

TEST(ThreadGroup, AnExitInTheBackwardOfOneRankEndsAll) {
  const auto outcomes = run_threads(
      2,
      [](Rank& rank) {
        const auto group = lobby().join(rank.rank(), rank.size(), {});
        torch::nn::Linear net(20, 20);
        DistributedDataParallel model(net, group);
        for (int stage = 0;; ++stage) {
          const at::Tensor x = torch::ones({2, 20}).requires_grad_();
          if (rank.rank() == 1 && stage == 5) {
            x.register_hook([](const at::Tensor&) { std::exit(3); });
          }
          model(x).sum().backward();
        }
      },
      {.may_exit = {0}}, std::source_location::current());
  // It destroys what libtorch's threads still use, which may crash; but nobody goes on or hangs.
  EXPECT_TRUE(outcomes[0].exit_code == 3 || outcomes[0].signal != 0);
}

TEST(ThreadGroup, MoreRanksThanCoresAreAWarning) {
  const CapturedWarnings warnings;
  const int ranks = available_cores() + 1;
  make_thread_groups(ranks - 1);
  EXPECT_THAT(warnings.messages(), ::testing::IsEmpty());
  make_thread_groups(ranks);
  EXPECT_THAT(warnings.messages(),
              ::testing::ElementsAre(::testing::StartsWith(fmt::format("{} ranks share", ranks))));
}

TEST(ThreadGroup, OfNoRanksIsRefused) {
  for (const int size : {0, -1}) {
    expect_error<UsageError>(std::to_string(size), {"make_thread_groups", std::to_string(size)},
                             [&] { make_thread_groups(size); });
  }
}

}  // namespace
}  // namespace lockstep::testing
