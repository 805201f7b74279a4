// SPDX-License-Identifier: BSD-3-Clause
// Adds context to errors that pass through a layer which knows more.
#pragma once

#include <string>

namespace lockstep {

// Rethrows the exception being handled. PeerLost, TimeoutError, UsageError and BackendError are
// thrown anew, with text before and after the message; any other exception stays as it is.
[[noreturn]] void rethrow_with(const std::string& before, const std::string& after = "");

}  // namespace lockstep
