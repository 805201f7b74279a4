// SPDX-License-Identifier: BSD-3-Clause
// The shared-memory backend does what every backend must do, between processes of one machine.
#include "collective/conformance/conformance.h"

namespace lockstep::testing {
namespace {

const Backend kShm = {.name = "shm", .join = [](Rank& rank, JoinOptions options) {
                        options.backend = "shm";
                        return join(rank, options);
                      }};

INSTANTIATE_TEST_SUITE_P(shm, ResultsConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, LifetimeConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, CallsConformance, ::testing::ValuesIn(cases(kShm, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(shm, FaultConformance, ::testing::ValuesIn(cases(kShm, {2, 3, 4})),
                         case_name);

}  // namespace
}  // namespace lockstep::testing
