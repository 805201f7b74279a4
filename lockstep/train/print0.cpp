// SPDX-License-Identifier: BSD-3-Clause
// Prints on rank 0 only.
#include <cstdio>
#include <string>

#include "lockstep/comm/group_argument.h"
#include "lockstep/train/over_ranks.h"

namespace lockstep {

void print0(const ProcessGroup& group, std::string_view line) {
  if (group.rank() != 0) return;
  // No exception: a full disk costs the line, not the training.
  const std::string whole = std::string(line) + '\n';
  std::fwrite(whole.data(), 1, whole.size(), stdout);
  std::fflush(stdout);
}

void print0(const std::shared_ptr<ProcessGroup>& group, std::string_view line) {
  print0(GroupArgument(group).get(), line);
}

}  // namespace lockstep
