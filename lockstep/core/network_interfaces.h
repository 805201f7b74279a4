// SPDX-License-Identifier: BSD-3-Clause
// Checks the network interfaces that Gloo and NCCL are told to use.
#pragma once

#include <string>

namespace lockstep {

// Whether a library that was told `value` would use the interface `name`.
using UsesInterface = bool (*)(const std::string& value, const std::string& name);
// Gloo takes one whole name.
bool gloo_uses(const std::string& value, const std::string& name);
// NCCL takes name prefixes, separated by commas: whole names after "=", interfaces to exclude after
// "^".
bool nccl_uses(const std::string& value, const std::string& name);

// Checks the environment variable that tells a library its interfaces. UsageError, beginning with
// `where` and listing this machine's interfaces, if no interface that the library would use is up
// and has an address.
void check_interfaces(const std::string& where, const char* variable, UsesInterface uses);

}  // namespace lockstep
