// SPDX-License-Identifier: BSD-3-Clause
// spawn() with forked ranks: results, errors and signals.
#include "lockstep/launch/spawn.h"

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <tuple>
#include <variant>

#include "support/private_tmpdir.h"
#include "support/process_table.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::eventually;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class Spawn : public ::testing::Test {
 protected:
  ~Spawn() override {
    EXPECT_THAT(tmpdir.entries(), IsEmpty());
    EXPECT_EQ(testing::count_descriptors(), descriptors);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child is left";
  }
  const testing::PrivateTmpdir tmpdir;
  const int descriptors = testing::count_descriptors();
};

TEST_F(Spawn, ReturnsNumbersByRank) {
  const std::vector<double> results = spawn(3, [](int rank) { return rank * 1.5; });
  EXPECT_THAT(results, ElementsAre(0, 1.5, 3));
}

TEST_F(Spawn, ReturnsStrings) {
  const std::vector<std::string> results =
      spawn(2, [](int rank) { return std::string(static_cast<std::size_t>(rank) * 1000000, 'x'); });
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0], "");
  EXPECT_EQ(results[1], std::string(1000000, 'x'));
}

TEST_F(Spawn, ReturnsStructs) {
  struct Score {
    int rank;
    float loss;
  };
  const auto results = spawn(2, [](int rank) -> const Score { return {rank, 0.5F}; });
  EXPECT_EQ(results.at(1).rank, 1);
  EXPECT_EQ(results.at(1).loss, 0.5F);
}

TEST_F(Spawn, ReturnsVectors) {
  const auto squares = spawn(2, [](int rank) {
    std::vector<double> numbers(100'000);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = rank + i * i;
    return numbers;
  });
  ASSERT_EQ(squares.at(1).size(), 100'000u);
  EXPECT_EQ(squares[1].back(), 1 + 99'999.0 * 99'999);
  const auto nothing = spawn(1, [](int) { return std::vector<int>(); });
  EXPECT_THAT(nothing.at(0), IsEmpty());
  const auto flags = spawn(2, [](int rank) { return std::vector<bool>{true, rank == 0, false}; });
  EXPECT_THAT(flags.at(1), ElementsAre(true, false, false));
  const auto texts = spawn(2, [](int rank) {
    return std::vector<std::string>{"", std::string("a\0b", 3), std::to_string(rank)};
  });
  EXPECT_THAT(texts.at(1), ElementsAre("", std::string("a\0b", 3), "1"));
  const auto nested = spawn(2, [](int rank) {
    return std::vector<std::vector<int>>{{rank, 2}, {}, {3}};
  });
  EXPECT_THAT(nested.at(1), ElementsAre(ElementsAre(1, 2), IsEmpty(), ElementsAre(3)));
}

TEST_F(Spawn, ReturnsArraysOfNumbers) {
  const auto results = spawn(2, [](int rank) { return std::array<int, 3>{rank, 1, 2}; });
  EXPECT_THAT(results.at(1), ElementsAre(1, 1, 2));
}

// Their bytes are not their value, so they must not compile.
static_assert(!SpawnResult<const char*> && !SpawnResult<std::unique_ptr<int>>);
static_assert(!SpawnResult<std::string_view> && !SpawnResult<std::span<int>>);
static_assert(!SpawnResult<std::array<std::string_view, 2>>);
static_assert(!SpawnResult<std::vector<const char*>> && !SpawnResult<std::vector<std::span<int>>>);
static_assert(!SpawnResult<std::optional<std::string_view>>);
static_assert(!SpawnResult<std::optional<const char*>>);
static_assert(!SpawnResult<std::variant<const char*, int>>);
static_assert(!SpawnResult<std::optional<std::variant<int, std::span<int>>>>);
static_assert(SpawnResult<std::optional<double>> && SpawnResult<std::variant<int, float>>);
static_assert(!SpawnResult<std::pair<int, std::string>> && !SpawnResult<std::tuple<int, float>>);

TEST_F(Spawn, NamesTheLimitThatAResultExceeds) {
  const auto returns = [](std::size_t bytes) {
    return [=](int) { return std::string(bytes, 'x'); };
  };
  const auto too_large = [](const std::string& size) {
    return ThrowsMessage<RankFailed>(AllOf(
        HasSubstr("the function returned " + size + " MiB"), HasSubstr("nearly 64 MiB from a "),
        HasSubstr("nearly 256 MiB from all"), HasSubstr("save the result to a file")));
  };
  EXPECT_THAT([&] { spawn(1, returns(64 << 20)); }, too_large("64.0"));
  EXPECT_THAT([&] { spawn(5, returns(60 << 20)); }, too_large("60.0"));
  EXPECT_EQ(spawn(1, returns((64 << 20) - 100)).at(0).size(), (64u << 20) - 100);
}

TEST_F(Spawn, ReturnsNothingForVoid) {
  int calls = 0;
  static_assert(std::is_void_v<decltype(spawn(1, [](int) {}))>);
  spawn(2, [&](int) { ++calls; });
  EXPECT_EQ(calls, 0) << "it ran in this process";
}

TEST_F(Spawn, RanksHaveTheEnvironmentOfRun) {
  const auto results = spawn(2, [](int rank) {
    return *environment("RANK") + *environment("WORLD_SIZE") + *environment("LOCAL_RANK") +
           (environment("LOCKSTEP_STORE") ? "s" : "") +
           (environment_int("RANK") == rank ? "=" : "");
  });
  EXPECT_THAT(results, ElementsAre("020s=", "121s="));
  EXPECT_FALSE(environment("RANK"));
}

TEST_F(Spawn, SharesOutTheCores) {
  const auto threads = [](const SpawnOptions& options) {
    return spawn(
        1, [](int) { return *environment("OMP_NUM_THREADS"); }, options)[0];
  };
  ::setenv("OMP_NUM_THREADS", "9", 1);
  EXPECT_EQ(threads({}), "9");
  EXPECT_EQ(threads({.threads = 3}), "3");
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads({}), std::to_string(available_cores()));
  ::setenv("OMP_NUM_THREADS", "1", 1);
}

TEST_F(Spawn, NamesTheRankAndWhatItsExceptionSaid) {
  try {
    spawn(3, [](int rank) {
      if (rank == 1) throw std::runtime_error("no more data");
      LocalStore(*environment("LOCKSTEP_STORE")).get("never", Deadline::after(60s));
    });
    FAIL() << "it returned";
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("no more data")));
    EXPECT_EQ(error.failure().rank, 1);
    EXPECT_EQ(error.failure().exit_code, 1);
  }
}

TEST_F(Spawn, NamesExceptionsThatAreNone) {
  EXPECT_THAT([] { spawn(1, [](int) { throw 3; }); },
              ThrowsMessage<RankFailed>(HasSubstr("not derived from std::exception")));
}

TEST_F(Spawn, NamesTheSignalThatKilledARank) {
  const auto dies = [](int rank) {
    if (rank == 1) ::raise(SIGKILL);
    LocalStore(*environment("LOCKSTEP_STORE")).get("never", Deadline::after(60s));
  };
  EXPECT_THAT([&] { spawn(2, dies); },
              ThrowsMessage<RankFailed>(AllOf(HasSubstr("rank 1"), HasSubstr("SIGKILL"))));
}

TEST_F(Spawn, NamesTheExitCode) {
  EXPECT_THAT([] { spawn(2, [](int rank) { ::_exit(rank * 7); }); },
              ThrowsMessage<RankFailed>(HasSubstr("exit code 7")));
  EXPECT_THAT([] { spawn(1, [](int) { ::_exit(0); }); },
              ThrowsMessage<Error>(HasSubstr("does it call exit()?")));
}

TEST_F(Spawn, QuotesARankThatCaughtItsException) {
  SpawnOptions options;
  options.on_line = [](const OutputLine&) {};
  const auto prints_and_exits = [](int) {
    std::cerr << "error: no more data\n";
    ::_exit(1);
  };
  EXPECT_THAT([&] { spawn(1, prints_and_exits, options); },
              ThrowsMessage<RankFailed>(
                  AllOf(HasSubstr("failed first: exit code 1; if it caught an exception, let that "
                                  "leave the function"),
                        HasSubstr("its last lines:\n  error: no more data"))));
}

TEST_F(Spawn, KeepsTheLastLines) {
  SpawnOptions options;
  options.on_line = [](const OutputLine&) {};
  try {
    spawn(
        1,
        [](int) {
          std::cout << "before the end\n";
          throw Error("x");
        },
        options);
    FAIL() << "it returned";
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.failure().last_lines, ElementsAre("before the end"));
  }
}

TEST_F(Spawn, KeepsTheLastLinesOfAKilledRank) {
  SpawnOptions options;
  options.on_line = [](const OutputLine&) {};
  const auto dies = [](int) {
    std::printf("printf\n");
    std::cout << "cout\n";
    std::putchar('x');
    std::putchar('\n');
    ::raise(SIGKILL);
  };
  // This process's own stdout was a pipe or a file when it was first used.
  std::printf("used\n");
  try {
    spawn(1, dies, options);
    FAIL() << "it returned";
  } catch (const RankFailed& error) {
    EXPECT_THAT(error.failure().last_lines, ElementsAre("printf", "cout", "x"));
  }
}

TEST_F(Spawn, WritesWhatWasBufferedOnce) {
  // The text is in a buffer of this process when it forks.
  ::testing::internal::CaptureStdout();
  std::printf("parent; ");
  spawn(2, [](int rank) {
    std::printf("printf\n");
    if (rank == 1) std::cout << "cout" << std::endl;
  });
  spawn(1, [](int) { std::printf("bare\n"); }, {.prefix = false});
  std::printf("again");
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(text, AllOf(::testing::StartsWith("parent; [rank "), HasSubstr("[rank 0] printf\n"),
                          HasSubstr("[rank 1] printf\n"), HasSubstr("[rank 1] cout\n"),
                          ::testing::EndsWith("\nbare\nagain")));
  EXPECT_EQ(text.find("parent; ", 1), std::string::npos);
}

TEST_F(Spawn, DoesNotForkAProcessThatHasStartedThreads) {
  std::promise<void> end;
  std::jthread thread([&] { end.get_future().wait(); });
  EXPECT_THAT([] { spawn(2, [](int) {}, {.start_method = StartMethod::fork}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("call spawn before"),
                                              HasSubstr("one thread"), HasSubstr("lockstep run"))));
  end.set_value();
  thread.join();
  EXPECT_EQ(spawn(2, [](int rank) { return rank; }).size(), 2u);
}

TEST_F(Spawn, RefusesNoRanks) {
  EXPECT_THROW(spawn(0, [](int) {}), UsageError);
}

TEST_F(Spawn, WorksInsideARank) {
  const auto sums = spawn(2, [](int rank) {
    int sum = 0;
    for (const int value : spawn(2, [rank](int inner) { return 10 * rank + inner; })) sum += value;
    return sum;
  });
  EXPECT_THAT(sums, ElementsAre(1, 21));
}

TEST_F(Spawn, RestoresSignals) {
  struct sigaction before {};
  ::sigaction(SIGINT, nullptr, &before);
  ::signal(SIGTERM, SIG_IGN);
  const auto ignored = spawn(1, [](int) {
    const auto terminate = ::signal(SIGTERM, SIG_DFL);
    const auto pipe = ::signal(SIGPIPE, SIG_DFL);
    return terminate == SIG_IGN && pipe == SIG_DFL;
  });
  EXPECT_TRUE(ignored.at(0)) << "ranks have the signals as they were";
  EXPECT_EQ(::signal(SIGTERM, SIG_DFL), SIG_IGN);
  struct sigaction after {};
  ::sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

std::atomic<int> handled = 0;

TEST_F(Spawn, PassesOnANoticeUnlessTheProgramHandlesIt) {
  const auto before = ::signal(SIGUSR1, [](int) { ++handled; });
  // The rank has this program's handler, and one for a signal that this program leaves alone.
  const auto seen = spawn(1, [launcher = ::getpid()](int) {
    ::signal(SIGUSR2, [](int) { handled += 10; });
    ::kill(launcher, SIGUSR1);
    ::kill(launcher, SIGUSR2);
    return eventually([] { return handled >= 10; }) ? handled.load() : -1;
  });
  EXPECT_EQ(seen.at(0), 10) << "SIGUSR2 arrived, and SIGUSR1 did not";
  EXPECT_TRUE(eventually([] { return handled == 1; }));
  ::signal(SIGUSR1, before);
}

// A process that spawns and is signalled: ranks write their pids to files named for them, with that
// of a child in a session of its own, and wait.
struct Spawner {
  explicit Spawner(const std::filesystem::path& folder) : folder(folder) {
    pid = ::fork();
    if (pid > 0) return;
    try {
      spawn(2, [&](int rank) {
        const std::string name = folder / ("pid" + std::to_string(rank));
        const pid_t child = ::fork();
        if (child == 0) {
          ::setsid();
          while (true) ::pause();
        }
        std::ofstream(name + ".new") << ::getpid() << ' ' << child;
        std::filesystem::rename(name + ".new", name);
        LocalStore(*environment("LOCKSTEP_STORE")).get("never", Deadline::after(600s));
      });
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }

  std::vector<pid_t> processes() const {
    std::vector<pid_t> pids;
    for (const int rank : {0, 1}) {
      std::ifstream file(folder / ("pid" + std::to_string(rank)));
      for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
    }
    return pids;
  }

  int wait() const {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return status;
  }

  void remove_files() const {
    for (const int rank : {0, 1}) std::filesystem::remove(folder / ("pid" + std::to_string(rank)));
  }

  std::filesystem::path folder;
  pid_t pid;
};

bool gone(const std::vector<pid_t>& pids) {
  return std::ranges::all_of(pids, [](pid_t pid) { return ::kill(pid, 0) != 0; });
}

TEST_F(Spawn, ASignalEndsTheRanksAndThenTheCaller) {
  const Spawner spawner(tmpdir.path());
  ASSERT_TRUE(eventually([&] { return spawner.processes().size() == 4; }));
  ::kill(spawner.pid, SIGINT);
  const int status = spawner.wait();
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
  EXPECT_TRUE(gone(spawner.processes()));
  spawner.remove_files();
}

TEST_F(Spawn, AKilledKeeperIsAnError) {
  const auto kills = [](int rank) {
    if (rank == 1) ::kill(::getppid(), SIGKILL);
    while (true) ::pause();
  };
  EXPECT_THAT([&] { spawn(2, kills); },
              ThrowsMessage<BackendError>(AllOf(HasSubstr("the keeper of the ranks (pid "),
                                                HasSubstr("killed by signal 9 (SIGKILL)"))));
  EXPECT_EQ(spawn(2, [](int rank) { return rank; }).size(), 2u);
}

TEST_F(Spawn, RanksDieWithTheirCaller) {
  const Spawner spawner(tmpdir.path());
  ASSERT_TRUE(eventually([&] { return spawner.processes().size() == 4; }));
  ::kill(spawner.pid, SIGKILL);
  spawner.wait();
  EXPECT_TRUE(eventually([&] { return gone(spawner.processes()); }));
  spawner.remove_files();
  EXPECT_TRUE(eventually([&] { return tmpdir.entries().empty(); })) << "the keeper removes it";
}

}  // namespace
}  // namespace lockstep
