// SPDX-License-Identifier: BSD-3-Clause
// Which file holds the code at an address of this process.
#pragma once

#include <string>

namespace lockstep {

// The file that symbolic links lead to; empty if the address is in no program or library.
std::string library_of(const void* address);

}  // namespace lockstep
