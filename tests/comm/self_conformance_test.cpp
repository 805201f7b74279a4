// SPDX-License-Identifier: BSD-3-Clause
// A group of one does what every group does.
#include "comm/conformance/conformance.h"

namespace lockstep::testing {
namespace {

const TestedBackend kSelf = {.name = "self", .join = [](Rank& rank, const JoinOptions& options) {
                               return join(rank, options);
                             }};

INSTANTIATE_TEST_SUITE_P(self, ResultsConformance, ::testing::ValuesIn(cases(kSelf, {1})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(self, LifetimeConformance, ::testing::ValuesIn(cases(kSelf, {1})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(self, CallsConformance, ::testing::ValuesIn(cases(kSelf, {1})), case_name);
INSTANTIATE_TEST_SUITE_P(self, TrainingConformance, ::testing::ValuesIn(cases(kSelf, {1})),
                         case_name);

}  // namespace
}  // namespace lockstep::testing
