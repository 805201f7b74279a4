// SPDX-License-Identifier: BSD-3-Clause
// The gloo backend does what every backend must do, between processes.
#include <filesystem>
#include <string>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include <fmt/format.h>
#include <sched.h>

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
