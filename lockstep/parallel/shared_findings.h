// SPDX-License-Identifier: BSD-3-Clause
// What ranks tell each other after a backward whose means are divided, where none sees all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// For each parameter, 0 or 1.
struct Findings {
  explicit Findings(std::size_t parameters) : used(parameters), not_finite(parameters) {}

  std::vector<std::uint8_t> used;
  std::vector<std::uint8_t> not_finite;
};

// Collective. Afterwards a finding is 1 if it was 1 on any rank.
void share_findings(Findings& findings, ProcessGroup& group);

}  // namespace lockstep
