// SPDX-License-Identifier: BSD-3-Clause
// Combines the ranks' findings by one small all_reduce.
#include "lockstep/parallel/shared_findings.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>

namespace lockstep {

void share_findings(Findings& findings, ProcessGroup& group) {
  const auto count = static_cast<std::int64_t>(findings.used.size());
  at::Tensor local = at::empty({2 * count}, at::kByte);
  auto* const bytes = local.data_ptr<std::uint8_t>();
  std::copy(findings.used.begin(), findings.used.end(), bytes);
  std::copy(findings.not_finite.begin(), findings.not_finite.end(), bytes + count);
  const at::Tensor shared = local.to(group.device());
  group.all_reduce(shared, ReduceOp::max).wait();
  local = shared.cpu();
  const auto* const all = local.data_ptr<std::uint8_t>();
  std::copy(all, all + count, findings.used.begin());
  std::copy(all + count, all + 2 * count, findings.not_finite.begin());
}

}  // namespace lockstep
