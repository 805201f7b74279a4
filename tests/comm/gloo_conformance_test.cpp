// SPDX-License-Identifier: BSD-3-Clause
// The gloo backend does what every backend must do, between processes.
#include <filesystem>
#include <string>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "support/free_port.h"
#include <fmt/format.h>
#include <sched.h>

#include "lockstep/comm/init_process_group.h"

namespace lockstep::testing {
namespace {

const TestedBackend kGloo = {.name = "gloo",
                             .join =
                                 [](Rank& rank, JoinOptions options) {
                                   options.backend = "gloo";
                                   return join(rank, options);
                                 },
                             .groups_in_a_loop = 100};

INSTANTIATE_TEST_SUITE_P(gloo, ResultsConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, LifetimeConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, CallsConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, AbsenceConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, FaultConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, TrainingConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);

TEST(GlooGroup, AnInterfaceThatDoesNotExistIsNamedWithThoseThatDo) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("GLOO_SOCKET_IFNAME", "no-such-wire", 1);
    expect_error<UsageError>("joining",
                             {fmt::format("\\[gloo\\] joining, rank {} of 2", rank.rank()),
                              "GLOO_SOCKET_IFNAME=no-such-wire", "There are: .*lo \\(127.0.0.1\\)"},
                             [&] { kGloo.join(rank, {}); });
    ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    kGloo.join(rank, {.key = "again"})->barrier().wait();
  });
}

TEST(GlooGroup, JoinsOverAnIpv6Address) {
  if (!has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  for (const int size : {2, 3}) {
    const std::string method = fmt::format("tcp://[::1]:{}", free_port());
    run_ranks(size, [&](Rank& rank) {
      const auto group = init_process_group({.backend = "gloo",
                                             .init_method = method,
                                             .rank = rank.rank(),
                                             .world_size = size,
                                             .timeout = std::chrono::seconds(30)});
      const at::Tensor tensor = at::ones({3});
      group->all_reduce(tensor).wait();
      EXPECT_EQ(tensor.sum().item<int>(), 3 * size);
    });
  }
}

TEST(GlooGroup, TakesListsOfInterfaces) {
  run_ranks(2, [](Rank& rank) {
    for (const char* list : {"no-such-wire,lo", "=lo", "^no-such-wire", "^=no-such-wire"}) {
      ::setenv("GLOO_SOCKET_IFNAME", list, 1);
      kGloo.join(rank, {.key = list + 1})->barrier().wait();
    }
    ::setenv("GLOO_SOCKET_IFNAME", "no-such-wire,nor-this-one", 1);
    expect_error<UsageError>("joining", {"GLOO_SOCKET_IFNAME=no-such-wire,nor-this-one names no"},
                             [&] { kGloo.join(rank, {.key = "none"}); });
  });
}

int background_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (::sched_getscheduler(std::stoi(task.path().filename())) == SCHED_BATCH) ++count;
  }
  return count;
}

// Its thread must not take the core from one that holds a lock of Gloo's.
TEST(GlooGroup, GloosThreadAloneRunsInTheBackground) {
  run_ranks(2, [](Rank& rank) {
    const auto group = kGloo.join(rank, {});
    EXPECT_EQ(background_threads(), 1);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
  });
}

}  // namespace
}  // namespace lockstep::testing
