// SPDX-License-Identifier: BSD-3-Clause
// The gloo backend does what every backend must do, between processes.
#include <cstdlib>

#include "collective/conformance/conformance.h"

namespace lockstep::testing {
namespace {

const Backend kGloo = {.name = "gloo",
                       .join =
                           [](Rank& rank, JoinOptions options) {
                             options.backend = "gloo";
                             return join(rank, options);
                           },
                       .groups_in_a_loop = 100};

// That ranks make different calls is seen at once only where they compare them.
const Backend kGlooThatCompares = {.name = "gloo", .join = [](Rank& rank, JoinOptions options) {
                                     ::setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
                                     options.backend = "gloo";
                                     return join(rank, options);
                                   }};

INSTANTIATE_TEST_SUITE_P(gloo, ResultsConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, LifetimeConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, CallsConformance,
                         ::testing::ValuesIn(cases(kGlooThatCompares, {2, 3})), case_name);
INSTANTIATE_TEST_SUITE_P(gloo, AbsenceConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, FaultConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(gloo, TrainingConformance, ::testing::ValuesIn(cases(kGloo, {2, 3})),
                         case_name);

}  // namespace
}  // namespace lockstep::testing
