// SPDX-License-Identifier: BSD-3-Clause
// When init_process_group warns, in ranks that are processes, and on a terminal.
#include "lockstep/comm/group_warnings.h"

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/captured_warnings.h"
#include "support/environment.h"
#include "support/free_port.h"
#include "support/rank_processes.h"
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/spinning.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/spawn.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// What a function warns of, a line each.
std::string warned(const std::function<void()>& function) {
  const CapturedWarnings warnings(CapturedWarnings::Repeats::once);
  function();
  return fmt::format("{}", fmt::join(warnings.messages(), "\n"));
}

// Pins each rank, makes two groups, and returns all ranks' warnings.
std::string warnings_of(int size, const std::function<std::vector<int>(int)>& cores_of,
                        const std::map<std::string, std::string>& variables = {}) {
  const auto outcomes = run_ranks(size, [&](Rank& rank) {
    set_launcher_environment(variables);
    pin_to_cores(cores_of(rank.rank()));
    rank.report(warned([&] {
      for (const char* name : {"once", "again"}) {
        init_process_group({.init_method = rank.rendezvous_url(name),
                            .rank = rank.rank(),
                            .world_size = size,
                            .timeout = std::chrono::seconds(30)});
      }
    }));
  });
  std::string all;
  for (const RankOutcome& outcome : outcomes) all += outcome.result;
  return all;
}

int count(const std::string& text, const std::string& what) {
  int found = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++found;
  return found;
}

// The first two, or one if there is one.
std::vector<int> two_cores(int) {
  const std::vector<int> cores = allowed_cores();
  return {cores.begin(), cores.begin() + std::min<std::ptrdiff_t>(std::ssize(cores), 2)};
}

TEST(GroupWarnings, MoreRanksThanCoresAreAWarningFromOneRankOnce) {
  const std::string all = warnings_of(3, two_cores);
  EXPECT_THAT(all, HasSubstr(fmt::format("3 ranks share {} core", std::min(2, available_cores()))));
  EXPECT_EQ(count(all, " ranks share "), 1) << all;
}

TEST(GroupWarnings, LeaveAnAgentsRanksToItUnlessAnotherAgentHasSomeHere) {
  // As `lockstep run --nnodes` starts ranks.
  const auto by_agents_with = [](const char* ranks) {
    return warnings_of(3, two_cores,
                       {{"LOCKSTEP_STORE", ""}, {"LOCAL_WORLD_SIZE", ranks}, {"LOCAL_RANK", "0"}});
  };
  EXPECT_THAT(by_agents_with("3"), IsEmpty());
  EXPECT_EQ(count(by_agents_with("1"), "3 ranks share "), 1);
}

TEST(GroupWarnings, RanksOnCoresOfTheirOwnAreFine) {
  const std::vector<int> cores = allowed_cores();
  if (available_cores() < 2) GTEST_SKIP() << "there is one core";
  // As mpirun binds them: each sees one core.
  EXPECT_THAT(
      warnings_of(2, [&](int rank) { return std::vector{cores[static_cast<std::size_t>(rank)]}; }),
      IsEmpty());
  EXPECT_THAT(warnings_of(2, [&](int) { return std::vector{cores[0]}; }),
              HasSubstr("2 ranks share 1 core"));
}

// Standard output on a pseudo-terminal, or on /dev/null.
class StandardOutput {
 public:
  explicit StandardOutput(bool on_terminal) : before_(::dup(STDOUT_FILENO)) {
    std::string name = "/dev/null";
    if (on_terminal) {
      master_.reset(::posix_openpt(O_RDWR | O_NOCTTY));
      if (!master_ || ::grantpt(master_.get()) != 0 || ::unlockpt(master_.get()) != 0) {
        throw std::runtime_error("no pseudo-terminal");
      }
      name = ::ptsname(master_.get());
    }
    const UniqueFd opened(::open(name.c_str(), O_RDWR | O_NOCTTY));
    if (!before_ || !opened || ::dup2(opened.get(), STDOUT_FILENO) < 0) {
      throw std::runtime_error(name + " cannot become standard output");
    }
  }
  ~StandardOutput() { ::dup2(before_.get(), STDOUT_FILENO); }
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

 private:
  UniqueFd before_;
  UniqueFd master_;
};

struct Start {
  std::map<std::string, std::string> variables = {};
  InitOptions options = {};
  int cores = 2;
  bool on_terminal = true;
};

// The warnings of a program that is started so, and makes a group twice.
std::string warnings_of(const Start& start) {
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    set_launcher_environment(start.variables);
    std::vector<int> cores = allowed_cores();
    cores.resize(static_cast<std::size_t>(start.cores));
    pin_to_cores(cores);
    rank.report(warned([&] {
      const StandardOutput output(start.on_terminal);
      for (int round = 0; round < 2; ++round) {
        EXPECT_EQ(init_process_group(start.options)->size(), 1);
      }
    }));
  });
  return outcomes.at(0).result;
}

// Processes that compute on one core each, until it is destroyed.
class BusyCores {
 public:
  explicit BusyCores(const std::vector<int>& cores) {
    for (const int core : cores) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin_to_cores({core});
        while (true) pause_core();
      }
      children_.push_back(child);
    }
  }
  ~BusyCores() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }
  BusyCores(const BusyCores&) = delete;
  BusyCores& operator=(const BusyCores&) = delete;

 private:
  std::vector<pid_t> children_;
};

// The threads of a program that asked for two and found two busy cores, and its warnings.
std::string threads_beside_others(const std::map<std::string, std::string>& variables) {
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    set_launcher_environment({});
    for (const char* name : {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    pin_to_cores(two_cores(0));
    at::set_num_threads(2);
    const BusyCores busy(two_cores(0));
    const std::string warning = warned([] {
      for (int round = 0; round < 2; ++round) init_process_group({.world_size = 1});
    });
    rank.report(fmt::format("{}: {}", at::get_num_threads(), warning));
  });
  return outcomes.at(0).result;
}

class GroupOfOne : public ::testing::Test {
 protected:
  void SetUp() override {
    if (available_cores() < 2) GTEST_SKIP() << "there is one core";
  }
};

TEST_F(GroupOfOne, OnATerminalIsAWarningOnceThatSaysHowToStartRanks) {
  const std::string warning = warnings_of({});
  EXPECT_THAT(warning, AllOf(HasSubstr("this process is a group of one, and could use 2 cores: "
                                       "`lockstep run -n 2 "),
                             HasSubstr(program_invocation_name), HasSubstr("` starts 2 ranks")));
  EXPECT_EQ(count(warning, "a group of one"), 1) << warning;
}

TEST_F(GroupOfOne, IsFineWithoutATerminalOrWithOneCore) {
  EXPECT_THAT(warnings_of({.on_terminal = false}), IsEmpty());
  EXPECT_THAT(warnings_of({.cores = 1}), IsEmpty());
}

TEST_F(GroupOfOne, IsFineIfALauncherMadeIt) {
  EXPECT_THAT(warnings_of({.variables = {{"RANK", "0"},
                                         {"WORLD_SIZE", "1"},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", std::to_string(free_port())}}}),
              IsEmpty());
  EXPECT_THAT(
      warnings_of({.variables = {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}}),
      IsEmpty());
  EXPECT_THAT(warnings_of({.variables = {{"WORLD_SIZE", "1"},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", std::to_string(free_port())}},
                           .options = {.rank = 0}}),
              IsEmpty());
  // Standard output of its ranks is a terminal.
  const auto by_spawn = spawn(1, [](int) { return warned([] { init_process_group(); }); },
                              {.start_method = StartMethod::fork});
  EXPECT_THAT(by_spawn, ElementsAre(IsEmpty()));
}

TEST_F(GroupOfOne, LeavesCoresThatOthersUseToThem) {
  const std::string beside = threads_beside_others({});
  EXPECT_THAT(beside, AllOf(StartsWith("1: other programs use the cores, and 2 threads"),
                            HasSubstr("libtorch gets 1 here"), HasSubstr("OMP_WAIT_POLICY=passive"),
                            HasSubstr("lockstep run -n 1 ")));
  EXPECT_EQ(count(beside, "other programs"), 1) << beside;
  EXPECT_EQ(threads_beside_others({{"OMP_WAIT_POLICY", "passive"}}), "2: ");
  EXPECT_EQ(threads_beside_others({{"OMP_NUM_THREADS", "2"}}), "2: ");
}

TEST_F(GroupOfOne, IsFineIfTheProgramAsksForIt) {
  EXPECT_THAT(warnings_of({.options = {.world_size = 1}}), IsEmpty());
  EXPECT_THAT(warnings_of({.options = {.rank = 0, .world_size = 1}}), IsEmpty());
  const std::string address = fmt::format("tcp://127.0.0.1:{}", free_port());
  EXPECT_THAT(warnings_of({.options = {.init_method = address, .rank = 0, .world_size = 1}}),
              IsEmpty());
}

}  // namespace
}  // namespace lockstep::testing
