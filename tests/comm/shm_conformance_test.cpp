// SPDX-License-Identifier: BSD-3-Clause
// The shared-memory backend does what every backend must do, between processes of one machine.
#include "comm/conformance/conformance.h"
#include "support/limits.h"
#include "support/skip_or_fail.h"
#include <ATen/ATen.h>

namespace lockstep::testing {
namespace {

const TestedBackend kShm = {.name = "shm",
                            .join =
                                [](Rank& rank, JoinOptions options) {
                                  options.backend = "shm";
                                  return join(rank, options);
                                },
                            .shares_memory = true};

INSTANTIATE_TEST_SUITE_P(shm, ResultsConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, LifetimeConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, CallsConformance, ::testing::ValuesIn(cases(kShm, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, AbsenceConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, FaultConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, OversubscriptionConformance, ::testing::ValuesIn(cases(kShm, {24})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, TrainingConformance, ::testing::ValuesIn(cases(kShm, {2, 3})),
                         case_name);

// Containers often have a /dev/shm of 64 MiB, or none.
TEST(ShmGroup, NeedsNothingOfDevShm) {
  for (const std::int64_t bytes : {0, 64 << 20}) {
    const auto outcomes = run_ranks(2, [&](Rank& rank) {
      if (!limit_dev_shm(bytes)) {
        rank.report("skipped");
        return;
      }
      const auto group = kShm.join(rank, {});
      const at::Tensor tensor = group->empty({25 << 20}, at::kFloat).fill_(1);  // 100 MiB
      group->all_reduce(tensor).wait();
      EXPECT_TRUE((tensor == 2).all().item<bool>());
    });
    if (outcomes[0].result == "skipped") return skip_or_fail("no namespaces of its own here");
  }
}

}  // namespace
}  // namespace lockstep::testing
