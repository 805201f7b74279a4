// SPDX-License-Identifier: BSD-3-Clause
// A hint at different numbers of batches, which most often make ranks of DistributedDataParallel
// wait in vain, or meet in different calls.
#pragma once

#include <string>

namespace lockstep {

// Rethrows the exception that is being handled, as rethrow_with(before) does; if different numbers
// of batches can be its cause, with the hint.
[[noreturn]] void rethrow_with_hint_at_batches(const std::string& before);

}  // namespace lockstep
