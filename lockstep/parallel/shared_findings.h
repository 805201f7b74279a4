// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other after a backward whose means are divided, where none sees all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket_plan.h"

namespace lockstep {

// 0 or 1, for each parameter and for each code of UpdateCount.
struct Findings {
  explicit Findings(std::size_t parameters)
      : used(parameters), not_finite(parameters), update_codes(kUpdateCodes) {}

  std::vector<std::uint8_t> used;
  std::vector<std::uint8_t> not_finite;
  std::vector<std::uint8_t> update_codes;
};

// Collective. Afterwards a finding is 1 if it was 1 on any rank.
void share_findings(Findings& findings, ProcessGroup& group);

}  // namespace lockstep
