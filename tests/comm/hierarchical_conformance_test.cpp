// SPDX-License-Identifier: BSD-3-Clause
// A hierarchical group does what every backend must do, on two hosts that are one.
#include "comm/conformance/conformance.h"
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

}  // namespace
}  // namespace lockstep::testing
