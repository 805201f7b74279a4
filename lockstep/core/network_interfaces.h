// SPDX-License-Identifier: BSD-3-Clause
// The network interfaces of this machine, by the names that libraries are told to use.
#pragma once

#include <string>

namespace lockstep {

// Whether a library that was told `value` would use the interface with this name.
using UsesInterface = bool (*)(const std::string& value, const std::string& name);
// Gloo: the name.
bool gloo_uses(const std::string& value, const std::string& name);
// NCCL: beginnings of names, separated by commas; after "=" whole names; after "^" those that it
// must not use.
bool nccl_uses(const std::string& value, const std::string& name);

// For a variable of the environment by which a library is told. UsageError, which begins with
// `where` and shows the interfaces that exist, if it would use none that is up and has an address.
void check_interfaces(const std::string& where, const char* variable, UsesInterface uses);

}  // namespace lockstep
