// SPDX-License-Identifier: BSD-3-Clause
// Combines the ranks' findings by one small all_reduce.
#include "lockstep/parallel/shared_findings.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>

namespace lockstep {

void share_findings(Findings& findings, ProcessGroup& group) {
  std::vector<std::vector<std::uint8_t>*> parts{&findings.used, &findings.not_finite,
                                                &findings.update_codes};
  std::size_t count = 0;
  for (const auto* part : parts) count += part->size();
  at::Tensor local = at::empty({static_cast<std::int64_t>(count)}, at::kByte);
  auto* byte = local.data_ptr<std::uint8_t>();
  for (const auto* part : parts) byte = std::copy(part->begin(), part->end(), byte);
  const at::Tensor shared = local.to(group.device());
  group.all_reduce(shared, ReduceOp::max).wait();
  local = shared.cpu();
  byte = local.data_ptr<std::uint8_t>();
  for (auto* part : parts) {
    std::copy_n(byte, part->size(), part->begin());
    byte += part->size();
  }
}

}  // namespace lockstep
