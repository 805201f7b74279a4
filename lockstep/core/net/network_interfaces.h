// SPDX-License-Identifier: BSD-3-Clause
// This machine's network interfaces, and the choice of them that Gloo and NCCL are told.
#pragma once

#include <optional>
#include <string>

#include "lockstep/core/error.h"

namespace lockstep {

// Whether a library that was told `value` would use the interface `name`. Both take names separated
// by commas, and as whole names after "="; after "^", those to exclude.
using UsesInterface = bool (*)(const std::string& value, const std::string& name);
// Names to use are whole, as for PyTorch's Gloo. Names to exclude are beginnings, as for NCCL.
bool gloo_uses(const std::string& value, const std::string& name);
// All names are beginnings.
bool nccl_uses(const std::string& value, const std::string& name);

// Checks the environment variable that tells a library its interfaces. UsageError in `context`,
// listing this machine's interfaces, if no interface that the library would use is up and has an
// address.
void check_interfaces(const ErrorContext& context, const char* variable, UsesInterface uses);

// The numeric address at which Gloo listens if it is told `value`: the address of the first
// interface in the list that is up and has one; after "^", of an interface that is not excluded.
// Prefers `own_host`, the numeric address that leads to rank 0, and addresses of its family.
// BackendError if there is none.
std::string gloo_address(const std::string& value, const std::string& own_host);

// The numeric address of an interface that is up and leads to other machines, IPv4 if there is one;
// nullopt if there is none, or the kernel does not list them.
std::optional<std::string> address_for_others();

}  // namespace lockstep
