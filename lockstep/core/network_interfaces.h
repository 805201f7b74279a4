// SPDX-License-Identifier: BSD-3-Clause
// The network interfaces of this machine, by the names that libraries are told to use.
#pragma once

#include <string>

namespace lockstep {

// Whether a library that was told `value` would use the interface with this name.
using UsesInterface = bool (*)(const std::string& value, const std::string& name);
// Gloo: one whole name.
bool gloo_uses(const std::string& value, const std::string& name);
// NCCL: beginnings of names, separated by commas; after "=" whole names; after "^" those that it
// must not use.
bool nccl_uses(const std::string& value, const std::string& name);

// Checks the environment variable by which a library is told. UsageError, which begins with `where`
// and lists the interfaces, if the library would use none that is up and has an address.
void check_interfaces(const std::string& where, const char* variable, UsesInterface uses);

}  // namespace lockstep
