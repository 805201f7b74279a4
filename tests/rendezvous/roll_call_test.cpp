// SPDX-License-Identifier: BSD-3-Clause
// Processes that do not fit together to one group: all of them are told, and none waits for the
// timeout.
#include "lockstep/rendezvous/roll_call.h"

#include <csignal>
#include <fstream>
#include <functional>

#include "comm/conformance/expect_error.h"
#include "support/environment.h"
#include "support/free_port.h"
#include "support/join.h"
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/rendezvous/exchange.h"
#include "lockstep/rendezvous/rendezvous.h"
#include "lockstep/rendezvous/tcp_store.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kSoon = 15s;

// Joins as this rank; the error comes long before the timeout.
void expect_refused(InitOptions options, const std::vector<std::string>& patterns) {
  options.timeout = 60s;
  const auto begin = Clock::now();
  expect_error<UsageError>("joining", patterns, [&] { init_process_group(options); });
  EXPECT_LT(Clock::now() - begin, kSoon);
}

InitOptions options(const std::string& url, const std::string& backend, int rank, int size) {
  return {.backend = backend, .init_method = url, .rank = rank, .world_size = size};
}

// That process r says it is rank numbers[r] of three, which two of them do.
void expect_two_of_one_rank(const std::vector<int>& numbers, int first, int second,
                            const std::string& backend, int port) {
  run_ranks(3, [&](Rank& rank) {
    set_launcher_environment({});
    rank.note(backend);
    const std::string url =
        port == 0 ? rank.rendezvous_url() : fmt::format("tcp://127.0.0.1:{}", port);
    const int number = numbers[static_cast<std::size_t>(rank.rank())];
    const auto pid = [&](int process) {
      return fmt::format("pid {} on host ", rank.pid_of(process));
    };
    // A rank that comes only when the others have been told finds nobody.
    if (port != 0 && rank.rank() == second) {
      const auto store = join_tcp_store({.host = "127.0.0.1",
                                         .port = static_cast<std::uint16_t>(port),
                                         .secret = {},
                                         .rank = 0,
                                         .world_size = 3,
                                         .timeout = 30s});
      for (const int other : {0, 1})
        store->get(fmt::format("roll/0/1/{}", other), Deadline::after(30s));
    }
    expect_refused(options(url, backend, number, 3),
                   {fmt::format("two processes say that they are rank {} of 3",
                                numbers[static_cast<std::size_t>(first)]),
                    pid(first), pid(second)});
  });
}

TEST(RollCall, TwoProcessesOfOneRankAreNamedOnAllRanks) {
  for (const std::string backend : {"shm", "gloo"}) {
    expect_two_of_one_rank({0, 1, 1}, 1, 2, backend, 0);
    expect_two_of_one_rank({0, 1, 0}, 0, 2, backend, 0);
    expect_two_of_one_rank({0, 1, 1}, 1, 2, backend, free_port());
    expect_two_of_one_rank({0, 1, 0}, 0, 2, backend, free_port());
  }
}

TEST(RollCall, DifferentBackendsAreNamedOnAllRanks) {
  run_ranks(3, [](Rank& rank) {
    set_launcher_environment({});
    expect_refused(
        options(rank.rendezvous_url(), rank.rank() == 1 ? "shm" : "gloo", rank.rank(), 3),
        {fmt::format("rank 0 \\(pid {} on host .*\\) asks for the backend gloo, but rank 1 "
                     "\\(pid {} on host .*\\) asks for shm",
                     rank.pid_of(0), rank.pid_of(1))});
  });
}

// And not at their own timeouts, which may be longer.
TEST(RollCall, RanksThatWaitAreToldThatRankZeroGaveUp) {
  run_ranks(3, [](Rank& rank) {
    if (rank.rank() == 1) return;
    set_launcher_environment({});
    InitOptions join = options(rank.rendezvous_url(), "shm", rank.rank(), 3);
    join.timeout = rank.rank() == 0 ? 5s : 60s;
    rank.rank() == 0 ? rank.await(2, "joining") : rank.cue("joining");
    const auto begin = Clock::now();
    expect_error<TimeoutError>(
        "joining",
        {fmt::format("rank {} of 3: rank 1 did not join", rank.rank()),
         rank.rank() == 0 ? "within 5.0 s" : "rank 0, which waited for all, gave up"},
        [&] { init_process_group(join); });
    EXPECT_LT(Clock::now() - begin, kSoon);
  });
}

TEST(RollCall, RankZeroIsToldWhoKnewAnotherSecret) {
  const std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  run_ranks(2, [&](Rank& rank) {
    const std::string file = fmt::format("{}/secret-{}", rank.folder(), rank.rank());
    std::ofstream(file) << "the secret of rank " << rank.rank() << ", long enough";
    ::chmod(file.c_str(), 0600);
    set_launcher_environment({{"LOCKSTEP_SECRET_FILE", file}});
    InitOptions join = options(url, "gloo", rank.rank(), 2);
    if (rank.rank() == 0) {
      join.timeout = 5s;
      rank.await(1, "joining");
      expect_error<TimeoutError>(
          "rank 0", {"rank 1 did not join within 5.0 s", "host 127.0.0.1 .*knew another secret"},
          [&] { init_process_group(join); });
    } else {
      join.timeout = 20s;
      rank.cue("joining");
      expect_error<BackendError>("rank 1", {"refused this rank's secret"},
                                 [&] { init_process_group(join); });
    }
  });
}

// While rank 0 still waits for another rank.
TEST(RollCall, ARankThatDiesAfterItCameIsNamed) {
  const int port = free_port();
  run_ranks(3,
            [&](Rank& rank) {
              set_launcher_environment({});
              const std::string url = fmt::format("tcp://127.0.0.1:{}", port);
              InitOptions join = options(url, "gloo", rank.rank(), 3);
              join.timeout = 60s;
              if (rank.rank() == 2) {
                join_tcp_store({.host = "127.0.0.1",
                                .port = static_cast<std::uint16_t>(port),
                                .secret = {},
                                .rank = 2,
                                .world_size = 3,
                                .timeout = 30s})
                    ->get("roll/0/1/1", Deadline::after(30s));
                ::kill(rank.pid_of(1), SIGKILL);
                return;
              }
              const auto begin = Clock::now();
              expect_error<PeerLost>(
                  "joining",
                  {fmt::format("rank 1 \\(pid {} on host .*\\) died while the ranks connected",
                               rank.pid_of(1))},
                  [&] { init_process_group(join); });
              EXPECT_LT(Clock::now() - begin, kSoon);
            },
            {.may_exit = {1}});
}

// Rank 1 is waited for first, and does not come.
TEST(RollCall, ARankThatDiesWhileAnotherIsLateIsNamed) {
  run_ranks(3,
            [](Rank& rank) {
              if (rank.rank() == 1) {
                rank.await(2, "entered");
                ::kill(rank.pid_of(2), SIGKILL);
                return;
              }
              set_launcher_environment({});
              InitOptions join = options(rank.rendezvous_url(), "shm", rank.rank(), 3);
              join.timeout = 60s;
              if (rank.rank() == 2) {
                // Kept until the end: its destructor writes to the file, which a kill would tear.
                const Membership member = rendezvous(
                    {.init_method = join.init_method, .rank = 2, .world_size = 3, .timeout = 60s});
                std::jthread cue([&] {
                  member.store->get("roll/0/1/2", Deadline::after(30s));
                  rank.cue("entered");
                });
                init_process_group(join);
              }
              const auto begin = Clock::now();
              expect_error<PeerLost>(
                  "joining", {fmt::format("rank 2 \\(pid {} on host .*\\) died", rank.pid_of(2))},
                  [&] { init_process_group(join); });
              EXPECT_LT(Clock::now() - begin, kSoon);
            },
            {.may_exit = {2}});
}

// In a file's store, as in torchrun's, its end does not show by itself; in its own it does.
TEST(RollCall, TheDeathOfRankZeroIsNamed) {
  for (const bool own_store : {false, true}) {
    const std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
    run_ranks(
        3,
        [&](Rank& rank) {
          set_launcher_environment({});
          InitOptions join =
              options(own_store ? url : rank.rendezvous_url(), "gloo", rank.rank(), 3);
          join.timeout = 60s;
          if (rank.rank() == 2) {
            const Membership member = rendezvous(
                {.init_method = join.init_method, .rank = 2, .world_size = 3, .timeout = 60s});
            for (const int other : {0, 1}) {
              member.store->get(fmt::format("roll/0/1/{}", other), Deadline::after(30s));
            }
            ::kill(rank.pid_of(0), SIGKILL);
            return;
          }
          const auto begin = Clock::now();
          expect_error<PeerLost>(
              "rank 1 of 3",
              {own_store ? "has rank 0 ended"
                         : fmt::format("rank 0 \\(pid {} on host .*\\) died", rank.pid_of(0))},
              [&] { init_process_group(join); });
          EXPECT_LT(Clock::now() - begin, kSoon);
        },
        {.may_exit = {0}});
  }
}

// Between the roll call and the first connection, after a last act of the rank that dies.
void expect_death_named(
    const std::string& backend,
    const std::function<std::shared_ptr<Backend>(const Membership&, const GroupOptions&)>& make,
    const std::function<void(const Membership&)>& last_act = [](const Membership&) {}) {
  const std::string url = fmt::format("tcp://127.0.0.1:{}", free_port());
  run_ranks(
      3,
      [&](Rank& rank) {
        set_launcher_environment({});
        Membership member =
            rendezvous({.init_method = url, .rank = rank.rank(), .world_size = 3, .timeout = 60s});
        member.processes = call_roll(member, backend, Deadline::after(60s));
        if (rank.rank() == 1) {
          last_act(member);
          ::raise(SIGKILL);
        }
        const auto begin = Clock::now();
        expect_error<PeerLost>(
            backend,
            {fmt::format("rank 1 \\(pid {}\\) died while the ranks connected", rank.pid_of(1))},
            [&] { make(member, {.timeout = 60s}); });
        EXPECT_LT(Clock::now() - begin, kSoon);
        // Rank 0 serves the store.
        rank.cue("done");
        rank.await(rank.rank() == 0 ? 2 : 0, "done");
      },
      {.may_exit = {1}});
}

TEST(RollCall, ARankThatDiesBeforeItConnectsIsNamed) {
  const auto join_shm = [](const Membership& member, const GroupOptions& group) {
    return make_shm_backend(member, group);
  };
  expect_death_named("shm", join_shm);
  expect_death_named("shm", join_shm, [](const Membership& member) {
    member.store->set("shm/0/1/1", "@lockstep-nobody-listens " + make_token());
  });
  expect_death_named("joining", [](const Membership& member, const GroupOptions& group) {
    map_hosts(member, this_host(), Deadline::after(group.timeout));
    return std::shared_ptr<Backend>();
  });
  if (!backend_row("gloo").built_in()) return;
  expect_death_named("gloo", [](const Membership& member, const GroupOptions& group) {
    return backend_row("gloo").join(member, group, "gloo");
  });
}

// As `lockstep run -n 2 sh -c "first; second"` has it, and ranks that are started again.
TEST(RollCall, ProcessesMayTakeTheRankOfOneThatHasEnded) {
  run_ranks(2, [](Rank& rank) {
    set_launcher_environment({});
    const InitOptions join = options(rank.rendezvous_url(), "shm", rank.rank(), 2);
    for (int round = 0; round < 2; ++round) {
      const pid_t child = ::fork();
      if (child == 0) {
        const bool joined = init_process_group(join)->size() == 2;
        ::_exit(joined ? 0 : 1);
      }
      int status = -1;
      ::waitpid(child, &status, 0);
      EXPECT_EQ(status, 0);
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
