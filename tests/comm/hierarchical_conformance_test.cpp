// SPDX-License-Identifier: BSD-3-Clause
// A hierarchical group does what every backend must do, on two hosts that are one.
#include <csignal>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "comm/conformance/reference.h"
#include "comm/join_on_hosts.h"
#include <ATen/ATen.h>

#include "lockstep/comm/core/make_backends.h"

namespace lockstep::testing {
namespace {

std::shared_ptr<ProcessGroup> join_by_gloo(Rank& rank, const JoinOptions& options) {
  return join_on_hosts(rank, options, make_gloo_backend);
}

const TestedBackend kHierarchical = {
    .name = "hierarchical", .join = join_by_gloo, .groups_in_a_loop = 50};

INSTANTIATE_TEST_SUITE_P(hierarchical, ResultsConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {2, 3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, LifetimeConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, CallsConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, AbsenceConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, FaultConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, TrainingConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {2, 3})), case_name);

TEST(HierarchicalGroup, EveryRankHasTheSameBitsOfTheSum) {
  run_ranks(5, [](Rank& rank) {
    const auto group = join_by_gloo(rank, {});
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
      for (const std::int64_t count : {1, 1000, 300'000, 5'000'000}) {
        const auto inputs = inputs_of_all(rank.size(), type, {count});
        const at::Tensor sum = inputs[static_cast<std::size_t>(rank.rank())].clone();
        group->all_reduce(sum).wait();
        const bool half = type == at::kHalf || type == at::kBFloat16;
        EXPECT_TRUE(at::allclose(sum.to(at::kDouble), reduced(inputs).to(at::kDouble),
                                 half ? 0.05 : 1e-5, half ? 0.1 : 1e-5))
            << count << " of " << c10::toString(type);
        const at::Tensor of_rank_0 = sum.clone();
        group->broadcast(of_rank_0, 0).wait();
        expect_same_bits(sum, of_rank_0, fmt::format("{} of {}", count, c10::toString(type)));
      }
    }
  });
}

TEST(HierarchicalGroup, SplitGivesTheRanksOfAHostMemoryInCommon) {
  run_ranks(5, [](Rank& rank) {
    const auto group = join_on_hosts(rank, {}, make_gloo_backend, rank.rank() % 2);
    const std::vector<std::vector<int>> hosts{{0, 2, 4}, {1, 3}};
    EXPECT_EQ(group->hosts(), hosts);
    EXPECT_FALSE(group->common_memory({1}, at::kInt).defined());
    const auto host = group->split(hosts[static_cast<std::size_t>(rank.rank() % 2)]);
    EXPECT_EQ(host->backend(), "shm");
    const at::Tensor memory = host->common_memory({1}, at::kInt);
    if (host->rank() == 1) memory.fill_(rank.rank());
    host->barrier().wait();
    EXPECT_EQ(memory.item<int>(), rank.rank() % 2 + 2);
    const auto alone = group->split({rank.rank()});
    EXPECT_EQ(alone->common_memory({3}, at::kInt).sum().item<int>(), 0);
    EXPECT_TRUE(host->hosts().empty());
  });
}

TEST(HierarchicalGroup, ARankOfAHostThatWasSplitOffIsNamedByItsNumberInTheJob) {
  constexpr int kVictim = 3;
  run_ranks(
      4,
      [](Rank& rank) {
        const auto group = join_by_gloo(rank, {});
        const auto host = group->split(rank.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3});
        if (rank.rank() < 2) return;
        expect_error<PeerLost>("a lost rank", {"rank 1 \\(rank 3 of the job, pid [0-9]+\\)"}, [&] {
          for (int round = 0;; ++round) {
            if (rank.rank() == kVictim && round == 10) {
              rank.cue("under way");
            }
            host->barrier().wait();
          }
        });
      },
      {.signals = {{.rank = kVictim, .cue = "under way", .signal = SIGKILL}}});
}

}  // namespace
}  // namespace lockstep::testing
