// SPDX-License-Identifier: BSD-3-Clause
#include "collective/conformance/conformance.h"

#include <ostream>

namespace lockstep::testing {

std::vector<Case> cases(const Backend& backend, const std::vector<int>& sizes) {
  std::vector<Case> result;
  for (const int size : sizes) result.push_back({backend, size});
  return result;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return "of_" + std::to_string(info.param.size);
}

void PrintTo(const Case& value, std::ostream* stream) {
  *stream << value.backend.name << " of " << value.size;
}

std::vector<RankOutcome> Conformance::run_in_group(
    const std::function<void(Rank&, ProcessGroup&)>& function, const LaunchOptions& options,
    std::source_location where) const {
  return run(
      [&](Rank& rank) {
        const auto group = join(rank);
        function(rank, *group);
      },
      options, where);
}

}  // namespace lockstep::testing
