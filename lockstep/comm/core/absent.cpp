// SPDX-License-Identifier: BSD-3-Clause
// Describes absent ranks, grouped by the call that they were last seen waiting in.
#include "lockstep/comm/core/absent.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep {

std::string describe(const Absent& absent, const std::function<std::string(int rank)>& name) {
  std::vector<std::string> parts;
  for (const auto& [last_wait, ranks] : absent) {
    std::vector<std::string> names;
    for (const int rank : ranks) names.push_back(name(rank));
    parts.push_back(fmt::format("{}", fmt::join(names, ", ")));
    if (!last_wait.empty()) parts.back() += ", last seen waiting in " + last_wait;
  }
  return fmt::format("{}", fmt::join(parts, ", and "));
}

}  // namespace lockstep
