// SPDX-License-Identifier: BSD-3-Clause
// init_process_group with every kind of environment, options and contradictions.
#include "lockstep/comm/init_process_group.h"

#include "comm/conformance/expect_error.h"
#include "support/environment.h"
#include "support/free_port.h"
#include "support/rank_processes.h"
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/core/net/unix_socket.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using Variables = std::map<std::string, std::string>;

struct Refusal {
  Variables variables;
  InitOptions options;
  std::vector<std::string> patterns;
};

// One process for all: a UsageError comes before anything was joined.
void expect_refused(const std::vector<Refusal>& refusals) {
  run_ranks(1, [&](Rank& rank) {
    for (const auto& refusal : refusals) {
      std::string what = refusal.options.init_method;
      for (const auto& [name, value] : refusal.variables) what += " " + name + "=" + value;
      rank.note(what);
      set_launcher_environment(refusal.variables);
      expect_error<UsageError>(what, refusal.patterns, [&] {
        InitOptions options = refusal.options;
        options.timeout = 1s;
        init_process_group(options);
      });
    }
  });
}

// The environment of rank 0 of 2, with another value of one variable.
Variables with_one_changed(const std::string& name, const std::string& value) {
  Variables variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  variables[name] = value;
  return variables;
}

InitOptions method(const std::string& init_method, std::optional<int> rank = {},
                   std::optional<int> world_size = {}) {
  InitOptions options;
  options.init_method = init_method;
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

// Every rank joins and reduces once.
void expect_joins(int size, const std::function<InitOptions(Rank&)>& options_of) {
  run_ranks(size, [&](Rank& rank) {
    InitOptions options = options_of(rank);
    options.timeout = 30s;
    const auto group = init_process_group(options);
    EXPECT_EQ(group->rank(), rank.rank());
    EXPECT_EQ(group->size(), size);
    const at::Tensor tensor = at::ones({3});
    group->all_reduce(tensor).wait();
    EXPECT_EQ(tensor.sum().item<int>(), 3 * size);
  });
}

TEST(InitProcessGroup, WithNothingSetItIsAGroupOfOne) {
  run_ranks(1, [](Rank&) {
    set_launcher_environment({});
    const auto group = init_process_group();
    EXPECT_EQ(group->size(), 1);
    EXPECT_EQ(group->rank(), 0);
    EXPECT_EQ(group->local_rank(), 0);
    EXPECT_EQ(group->backend(), "self");
    // An empty variable is one that is not set.
    set_launcher_environment({{"RANK", ""}, {"MASTER_ADDR", ""}});
    EXPECT_EQ(init_process_group()->size(), 1);
  });
}

TEST(InitProcessGroup, AWorldSizeOf1IsAGroupOfOneWithNothingSet) {
  run_ranks(1, [](Rank&) {
    set_launcher_environment({});
    EXPECT_EQ(init_process_group(method("env://", {}, 1))->size(), 1);
    EXPECT_EQ(init_process_group(method("env://", 0, 1))->size(), 1);
  });
  expect_refused({{{{"WORLD_SIZE", "2"}}, method("env://", {}, 1), {"world_size is 1", "SIZE=2"}},
                  {{{"RANK", "0"}}, method("env://", {}, 1), {"MASTER_ADDR"}},
                  {{}, method("env://", 1, 1), {"MASTER_ADDR"}}});
}

TEST(InitProcessGroup, WithHalfOfItSetTheErrorNamesTheOtherHalf) {
  const Variables all = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  std::vector<Refusal> refusals;
  for (const auto& [name, value] : all) {
    Variables rest = all;
    rest.erase(name);
    refusals.push_back({rest, {}, {name + "[^_A-Z]", "lockstep run"}});
    // It alone: all the others are named.
    Refusal alone{{{name, value}}, {}, {}};
    for (const auto& [other, ignored] : rest) alone.patterns.push_back(other);
    refusals.push_back(alone);
  }
  refusals.push_back({{{"LOCAL_RANK", "1"}}, {}, {"RANK", "WORLD_SIZE", "MASTER_ADDR"}});
  expect_refused(refusals);
}

TEST(InitProcessGroup, MalformedNumbersAreNamedWithTheirVariable) {
  const auto with = [](const std::string& name, const std::string& value) {
    return Refusal{with_one_changed(name, value),
                   {},
                   {name, value, "give a whole number from [01] to [0-9]+"}};
  };
  expect_refused({with("RANK", "one"), with("RANK", "1x"), with("RANK", "0.5"),
                  with("WORLD_SIZE", "two"), with("WORLD_SIZE", "99999999999"),
                  with("MASTER_PORT", "http"), with("MASTER_PORT", "0"),
                  with("MASTER_PORT", "70000"), with("LOCAL_RANK", "first"), with("RANK", "-1"),
                  with("RANK", " 1"), with("RANK", "0x1"), with("RANK", "1+"),
                  with("WORLD_SIZE", "0"), with("LOCAL_WORLD_SIZE", "0"),
                  with("MASTER_PORT", "29500 "), with("MASTER_PORT", "99999999999999999999")});
}

TEST(InitProcessGroup, VariablesOfAKubernetesServiceAreExplained) {
  const std::vector<std::string> explained = {"MASTER_PORT=\"tcp://10.0.0.1:29500\"",
                                              "Service named \"master\"",
                                              "enableServiceLinks: false"};
  expect_refused({{with_one_changed("MASTER_PORT", "tcp://10.0.0.1:29500"), {}, explained},
                  {{{"MASTER_PORT", "tcp://10.0.0.1:29500"}}, {}, explained},
                  {with_one_changed("RANK", "tcp://10.0.0.1:29500"),
                   {},
                   {"RANK=\"tcp://10.0.0.1:29500\"", "give a whole number"}},
                  {with_one_changed("WORLD_SIZE", "tcp://10.0.0.1:29500"),
                   {},
                   {"WORLD_SIZE=\"tcp://10.0.0.1:29500\"", "give a whole number"}}});
}

TEST(InitProcessGroup, VariablesWithSpacesOrQuotesAreNamed) {
  const auto with = [](const std::string& name, const std::string& value) {
    return Refusal{with_one_changed(name, value), {}, {name + "=\"" + value + "\"", "quotes"}};
  };
  expect_refused({with("RANK", " 1"), with("RANK", "\"1\""), with("WORLD_SIZE", "2\r"),
                  with("MASTER_PORT", "'29500'"), with("MASTER_ADDR", "10.0.0.1 172.17.0.1 "),
                  with("MASTER_ADDR", "'node0'"), with("MASTER_ADDR", "tcp://node0:29500"),
                  with("MASTER_ADDR", "node0:29500"), with("MASTER_ADDR", " ")});
}

TEST(InitProcessGroup, EmptyVariablesAreNamedAsEmpty) {
  expect_refused({{with_one_changed("RANK", ""), {}, {"env://: RANK \\(empty\\) not set"}},
                  {with_one_changed("MASTER_ADDR", ""), {}, {"MASTER_ADDR \\(empty\\) not set"}}});
}

TEST(InitProcessGroup, TheRankMustLieInTheWorld) {
  const auto world = [](const std::string& rank, const std::string& size) {
    return Variables{{"RANK", rank},
                     {"WORLD_SIZE", size},
                     {"MASTER_ADDR", "127.0.0.1"},
                     {"MASTER_PORT", "29500"}};
  };
  const auto local_world = [&](const std::string& rank, const std::string& size) {
    Variables variables = world("0", "2");
    variables["LOCAL_RANK"] = rank;
    variables["LOCAL_WORLD_SIZE"] = size;
    return variables;
  };
  expect_refused({{world("2", "2"), {}, {"rank is 2", "world size is 2"}},
                  {local_world("1", "3"), {}, {"LOCAL_RANK=1", "LOCAL_WORLD_SIZE=3", "0 of 2"}},
                  {local_world("2", "2"), {}, {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2", "0 of 2"}},
                  {{}, method("file:///nowhere", 5, 4), {"rank is 5", "world size is 4"}},
                  {{}, method("tcp://127.0.0.1:29500", 0, 0), {"world size is 0"}}});
}

TEST(InitProcessGroup, UnknownNamesAreRefusedWithTheKnownOnes) {
  InitOptions backend;
  backend.backend = "transport-pigeon";
  expect_refused(
      {{{}, backend, {"transport-pigeon", "shm"}},
       {{}, method("ftp://host:1", 0, 2), {"ftp://host:1", "tcp://", "file://", "env://"}},
       {{}, method("", 0, 2), {"env://"}},
       {{}, method("tcp://127.0.0.1", 0, 2), {"host:port"}},
       {{}, method("tcp://:29500", 0, 2), {"host:port"}},
       {{}, method("tcp://127.0.0.1:many", 0, 2), {"many", "port"}},
       {{}, method("tcp://[::1]", 0, 2), {"host:port", "\\[2001:db8::1\\]:29500"}},
       {{}, method("tcp://2001:db8::1", 0, 2), {"host:port", "\\[2001:db8::1\\]:29500"}},
       {{}, method("file://relative/path", 0, 2), {"absolute"}}});
}

TEST(InitProcessGroup, OptionsAndEnvironmentMustNotContradictEachOther) {
  expect_refused({{{{"RANK", "1"}}, method("file:///nowhere", 0, 2), {"RANK=1", "rank is 0"}},
                  {{{"WORLD_SIZE", "3"}},
                   method("file:///nowhere", 0, 2),
                   {"WORLD_SIZE=3", "world_size is 2"}},
                  {{}, method("file:///nowhere", 0), {"world size", "WORLD_SIZE"}},
                  {{}, method("tcp://127.0.0.1:29500", {}, 2), {"the rank", "RANK"}}});
}

TEST(InitProcessGroup, AGpuThatIsAskedForAndAbsentIsAnError) {
  if (at::hasCUDA()) GTEST_SKIP() << "there may be one";
  InitOptions options;
  options.device = at::Device(at::kCUDA, 0);
  expect_refused({{{}, options, {"cuda:0", "GPU"}}});
}

TEST(InitProcessGroup, JoinsByTheEnvironment) {
  const std::string port = std::to_string(free_port());
  expect_joins(2, [&](Rank& rank) {
    set_launcher_environment({{"RANK", std::to_string(rank.rank())},
                              {"WORLD_SIZE", "2"},
                              {"LOCAL_RANK", std::to_string(rank.rank())},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", port}});
    return InitOptions();
  });
}

// Older launchers pass the local rank only as an argument, which a program puts into LOCAL_RANK.
TEST(InitProcessGroup, JoinsWithALocalRankThatWasAnArgument) {
  const std::string port = std::to_string(free_port());
  run_ranks(2, [&](Rank& rank) {
    // Not the rank, which is the local rank if nothing else is said.
    const int local_rank = 1 - rank.rank();
    const std::string argument = fmt::format("--local_rank={}", local_rank);
    set_launcher_environment({{"RANK", std::to_string(rank.rank())},
                              {"WORLD_SIZE", "2"},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", port}});
    ::setenv("LOCAL_RANK", argument.substr(argument.find('=') + 1).c_str(), 1);
    InitOptions options;
    options.timeout = 30s;
    const auto group = init_process_group(options);
    EXPECT_EQ(group->rank(), rank.rank());
    EXPECT_EQ(group->local_rank(), local_rank);
    group->barrier().wait();
  });
}

TEST(InitProcessGroup, JoinsByTcp) {
  const std::string address = fmt::format("tcp://127.0.0.1:{}", free_port());
  expect_joins(2, [&](Rank& rank) {
    set_launcher_environment({});
    return method(address, rank.rank(), 2);
  });
}

TEST(InitProcessGroup, JoinsAtAnIpv6Address) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  const std::string address = fmt::format("tcp://[::1]:{}", free_port());
  expect_joins(2, [&](Rank& rank) {
    set_launcher_environment({});
    return method(address, rank.rank(), 2);
  });
  for (const char* host : {"::1", "[::1]"}) {
    const std::string port = std::to_string(free_port());
    expect_joins(3, [&](Rank& rank) {
      set_launcher_environment({{"RANK", std::to_string(rank.rank())},
                                {"WORLD_SIZE", "3"},
                                {"MASTER_ADDR", host},
                                {"MASTER_PORT", port}});
      return InitOptions();
    });
  }
}

TEST(InitProcessGroup, JoinsByAFile) {
  expect_joins(3, [](Rank& rank) {
    set_launcher_environment({{"RANK", std::to_string(rank.rank())}});
    return method(rank.rendezvous_url(), {}, 3);
  });
}

TEST(InitProcessGroup, NobodyServingTheStoreIsATimeoutThatNamesIt) {
  const int port = free_port();
  run_ranks(1, [&](Rank&) {
    set_launcher_environment({});
    InitOptions options = method(fmt::format("tcp://127.0.0.1:{}", port), 1, 2);
    options.timeout = 1s;
    const auto begin = std::chrono::steady_clock::now();
    expect_error<TimeoutError>("rank 0 is not there", {fmt::format("127.0.0.1:{}", port), "rank 0"},
                               [&] { init_process_group(options); });
    options.init_method = fmt::format("tcp://[::1]:{}", port);
    expect_error<TimeoutError>("nor at an IPv6 address",
                               {fmt::format("tcp://\\[::1\\]:{}", port), "rank 0"},
                               [&] { init_process_group(options); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  });
}

TEST(InitProcessGroup, AnUnknownHostOfRankZeroIsNamedWithTheVariable) {
  run_ranks(1, [&](Rank&) {
    Variables variables = with_one_changed("MASTER_ADDR", "nohost.invalid");
    variables["RANK"] = "1";
    set_launcher_environment(variables);
    InitOptions options;
    options.timeout = 1s;
    expect_error<BackendError>("nobody knows the host",
                               {"^rank 1 of 2: the host of rank 0 cannot be found: host "
                                "\"nohost.invalid\" is not known: .*; set MASTER_ADDR"},
                               [&] { init_process_group(options); });
  });
}

// As under launchers that set MASTER_ADDR=localhost where rank 0 runs.
TEST(InitProcessGroup, RankZeroSaysThatItListensOnLoopback) {
  const int port = free_port();
  run_ranks(1, [&](Rank&) {
    set_launcher_environment({});
    InitOptions options = method(fmt::format("tcp://localhost:{}", port), 0, 2);
    options.timeout = 1s;
    expect_error<TimeoutError>("rank 1 is elsewhere",
                               {"rank 1 did not join", "listens on localhost", "MASTER_ADDR"},
                               [&] { init_process_group(options); });
  });
}

// As when the launcher is stopped.
TEST(InitProcessGroup, AStoreThatDoesNotAnswerIsATimeoutThatNamesTheRank) {
  run_ranks(1, [&](Rank& rank) {
    const std::string path = rank.folder() + "/mute";
    const UniqueFd mute = listen_unix(path);
    set_launcher_environment({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCKSTEP_STORE", path}});
    InitOptions options;
    options.timeout = 1s;
    const auto begin = std::chrono::steady_clock::now();
    expect_error<TimeoutError>("a mute store", {"^rank 1 of 2: store .*/mute"},
                               [&] { init_process_group(options); });
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
  });
}

TEST(InitProcessGroup, DifferentWorldSizesAreNamedOnBothRanks) {
  const std::string port = std::to_string(free_port());
  for (const bool by_tcp : {true, false}) {
    run_ranks(2, [&](Rank& rank) {
      set_launcher_environment({});
      InitOptions options = method(by_tcp ? "tcp://127.0.0.1:" + port : rank.rendezvous_url(),
                                   rank.rank(), 2 + rank.rank());
      options.timeout = 20s;
      expect_error<UsageError>("2 and 3", {"rank 1 is one of 3, but rank 0 is one of 2"},
                               [&] { init_process_group(options); });
    });
  }
}

TEST(InitProcessGroup, APortThatIsTakenIsNamed) {
  const TakenPort taken;
  run_ranks(1, [&](Rank&) {
    set_launcher_environment({});
    InitOptions options = method(fmt::format("tcp://127.0.0.1:{}", taken.port()), 0, 2);
    options.timeout = 2s;
    expect_error<BackendError>("a port in use", {std::to_string(taken.port()), "port"},
                               [&] { init_process_group(options); });
  });
}

TEST(InitProcessGroup, SeveralGroupsFromOneProcess) {
  run_ranks(2, [](Rank& rank) {
    set_launcher_environment({});
    for (int round = 0; round < 5; ++round) {
      InitOptions options =
          method(rank.rendezvous_url(fmt::format("round-{}", round)), rank.rank(), 2);
      options.timeout = 30s;
      const auto group = init_process_group(options);
      group->barrier().wait();
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
