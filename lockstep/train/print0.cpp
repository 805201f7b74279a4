// SPDX-License-Identifier: BSD-3-Clause
// Prints on rank 0 only.
#include "lockstep/train/print0.h"

#include <cstdio>

#include <fmt/core.h>

namespace lockstep {

void print0(const ProcessGroup& group, std::string_view line) {
  if (group.rank() != 0) return;
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

}  // namespace lockstep
