// SPDX-License-Identifier: BSD-3-Clause
// Errors that pass through a layer which knows more of what was going on.
#pragma once

#include <string>

namespace lockstep {

// Throws the exception that is being handled once more: one of Lockstep's own as the same type,
// with words before and after its message; any other as it is.
[[noreturn]] void rethrow_with(const std::string& before, const std::string& after = "");

}  // namespace lockstep
