// SPDX-License-Identifier: BSD-3-Clause
// The workers of a DataParallel: their jobs, threads, modes and errors.
#include "lockstep/parallel/replica_workers.h"

#include <atomic>
#include <barrier>
#include <set>

#include "tests/support/rank_processes.h"
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/parallel/errors.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::thread::id> threads_of(ReplicaWorkers& workers, int count,
                                        const std::vector<int>& callers = {0}) {
  std::vector<std::thread::id> ids(static_cast<std::size_t>(count));
  workers.run(
      "test", count,
      [&](int job) { ids[static_cast<std::size_t>(job)] = std::this_thread::get_id(); }, callers);
  return ids;
}

TEST(ReplicaWorkers, RunAtOnce) {
  ReplicaWorkers workers;
  std::barrier all(4);  // would never return if one came after another
  workers.run("test", 4, [&](int) { all.arrive_and_wait(); });
}

TEST(ReplicaWorkers, KeepTheirThreads) {
  ReplicaWorkers workers;
  const auto first = threads_of(workers, 3);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 3u);
  EXPECT_EQ(first[0], std::this_thread::get_id());
  for (int round = 0; round < 100; ++round) {
    const auto some = threads_of(workers, 2);
    EXPECT_EQ(some[1], first[1]);
    EXPECT_EQ(threads_of(workers, 3), first);
  }
}

TEST(ReplicaWorkers, LetTheCallerChooseItsJobs) {
  ReplicaWorkers workers;
  const auto ids = threads_of(workers, 4, {1, 3});
  EXPECT_EQ(ids[1], std::this_thread::get_id());
  EXPECT_EQ(ids[3], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 3u);
  EXPECT_EQ(threads_of(workers, 2, {}).size(), 2u);
}

TEST(ReplicaWorkers, RunInTheCallersThreadWhenStopped) {
  ReplicaWorkers workers;
  threads_of(workers, 3);
  workers.stop();
  for (const auto& id : threads_of(workers, 3)) EXPECT_EQ(id, std::this_thread::get_id());
}

struct Modes {
  bool grad = at::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  bool autocast =
      c10::impl::tls_local_dispatch_key_set().excluded_.has(c10::DispatchKey::AutocastCPU) == false;
  at::ScalarType autocast_type = libtorch::autocast_types().cuda;
  bool operator==(const Modes&) const = default;
};

std::vector<Modes> modes_of(ReplicaWorkers& workers) {
  std::vector<Modes> modes(3);
  workers.run("test", 3, [&](int job) { modes[static_cast<std::size_t>(job)] = {}; });
  return modes;
}

TEST(ReplicaWorkers, SeeTheCallersModes) {
  ReplicaWorkers workers;
  const Modes usual;
  const auto expect_as_here = [&] {
    for (const Modes& modes : modes_of(workers)) EXPECT_EQ(modes, Modes());
  };
  expect_as_here();
  {
    const at::NoGradGuard no_grad;
    EXPECT_NE(Modes(), usual);
    expect_as_here();
  }
  {
    const c10::InferenceMode inference;
    EXPECT_NE(Modes(), usual);
    expect_as_here();
  }
  const auto types = libtorch::autocast_types();
  libtorch::set_autocast_types({types.cpu, at::kBFloat16});
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, false);
  EXPECT_NE(Modes(), usual);
  expect_as_here();
  libtorch::set_autocast_types(types);
  c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutocastCPU, true);
  expect_as_here();
}

TEST(ReplicaWorkers, KeepNothingOfWhatJobsLeaveBehind) {
  ReplicaWorkers workers;
  const Modes before;
  const int threads = at::get_num_threads();
  workers.run("test", 3, [](int) {
    at::GradMode::set_enabled(false);
    libtorch::set_autocast_types({at::kBFloat16, at::kBFloat16});
  });
  EXPECT_EQ(Modes(), before);
  EXPECT_EQ(at::get_num_threads(), threads);
  for (const Modes& modes : modes_of(workers)) EXPECT_EQ(modes, before);
}

// In a process of its own: libraries keep the threads, and a later fork of this process, which has
// none of them, would wait for them at its exit.
TEST(ReplicaWorkers, ShareTheCallersIntraOpThreads) {
  run_ranks(1, [](Rank&) {
    at::set_num_threads(6);
    ReplicaWorkers workers;
    for (const int count : {2, 3, 8}) {
      std::vector<int> threads(static_cast<std::size_t>(count));
      workers.run("test", count,
                  [&](int job) { threads[static_cast<std::size_t>(job)] = at::get_num_threads(); });
      EXPECT_THAT(threads, ::testing::Each(std::max(1, 6 / count)));
      EXPECT_EQ(at::get_num_threads(), 6);
    }
  });
}

TEST(ReplicaWorkers, ReportTheFirstErrorOnceAndGoOn) {
  ReplicaWorkers workers;
  std::atomic<int> ran = 0;
  for (int round = 0; round < 3; ++round) {
    try {
      workers.run("forward", 4, [&](int job) {
        ++ran;
        if (job == 2) throw std::out_of_range("the user's own mistake\nand its trace");
        if (job == 3) throw 7;
      });
      FAIL() << "no error";
    } catch (const ReplicaFailed& error) {
      EXPECT_EQ(error.replica(), 2);
      EXPECT_STREQ(error.what(),
                   "[DataParallel] forward of replica 2 of 4: the user's own mistake");
      EXPECT_THROW(std::rethrow_exception(error.cause()), std::out_of_range);
    }
  }
  EXPECT_EQ(ran, 12);
  EXPECT_THROW(workers.run("forward", 2,
                           [](int job) {
                             if (job) throw 7;
                           }),
               ReplicaFailed);
  threads_of(workers, 4);
}

TEST(ReplicaWorkers, RefuseToRunInsideTheirOwnJobs) {
  ReplicaWorkers workers;
  for (const int caller : {0, 1}) {
    try {
      workers.run("forward", 2, [&](int job) {
        if (job == caller) workers.run("forward", 1, [](int) {});
      });
      FAIL() << "no error";
    } catch (const ReplicaFailed& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("replica called the DataParallel")));
    }
  }
  ReplicaWorkers others;
  workers.run("forward", 2, [&](int job) {
    if (job == 0) threads_of(others, 2);
  });
}

TEST(ReplicaWorkers, TakeCallsFromSeveralThreadsInTurn) {
  ReplicaWorkers workers;
  std::atomic<int> inside = 0;
  std::atomic<int> ran = 0;
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        workers.run("test", 3, [&](int) {
          EXPECT_LE(++inside, 3);
          ++ran;
          --inside;
        });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(ran, 450);
}

}  // namespace
}  // namespace lockstep::testing
