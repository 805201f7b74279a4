// SPDX-License-Identifier: BSD-3-Clause
// This machine's network interfaces, and those that Gloo and NCCL are told to use.
#pragma once

#include <optional>
#include <string>

namespace lockstep {

// Whether a library that was told `value` would use the interface `name`. Both take names separated
// by commas, and as whole names after "="; after "^", those to exclude.
using UsesInterface = bool (*)(const std::string& value, const std::string& name);
// Names to use are whole, as for PyTorch's Gloo. Names to exclude are beginnings, as for NCCL.
bool gloo_uses(const std::string& value, const std::string& name);
// All names are beginnings.
bool nccl_uses(const std::string& value, const std::string& name);

// Checks the environment variable that tells a library its interfaces. UsageError, beginning with
// `where` and listing this machine's interfaces, if no interface that the library would use is up
// and has an address.
void check_interfaces(const std::string& where, const char* variable, UsesInterface uses);

// The numeric address at which Gloo listens when it was told `value`: of the first interface in the
// list that is up and has one, of any other interface than those excluded. Prefers `own_host`, the
// numeric address that leads to rank 0, and addresses of its family. BackendError if there is none.
std::string gloo_address(const std::string& value, const std::string& own_host);

// The numeric address of an interface that is up and leads to other machines, IPv4 if there is one;
// nullopt if there is none, or the kernel does not list them.
std::optional<std::string> address_for_others();

}  // namespace lockstep
