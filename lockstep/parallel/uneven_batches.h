// SPDX-License-Identifier: BSD-3-Clause
// Hints at different numbers of batches, the usual reason why ranks of DistributedDataParallel time
// out or make different calls at the same time.
#pragma once

#include <string>

namespace lockstep {

// Rethrows the exception being handled, like rethrow_with(before), with the hint if different
// numbers of batches may be the cause.
[[noreturn]] void rethrow_with_hint_at_batches(const std::string& before);

}  // namespace lockstep
