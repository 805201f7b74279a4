// SPDX-License-Identifier: BSD-3-Clause
// What most often makes ranks of DistributedDataParallel wait in vain, or meet in different calls.
#pragma once

#include <string>

namespace lockstep {

// Throws the exception that is being handled once more, as rethrow_with(before), and with a hint at
// different numbers of batches where those can be its cause.
[[noreturn]] void rethrow_with_hint_at_batches(const std::string& before);

}  // namespace lockstep
