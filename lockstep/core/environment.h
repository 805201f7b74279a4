// SPDX-License-Identifier: BSD-3-Clause
// Reading environment variables, with errors that name the variable and its value.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// The variable's value; nothing if it is unset or empty.
std::optional<std::string> environment(const char* name);

// The same as a whole number. UsageError if it is not one.
std::optional<int> environment_int(const char* name);

}  // namespace lockstep
