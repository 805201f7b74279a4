// SPDX-License-Identifier: BSD-3-Clause
// Finds the file that contains the code at an address of this process.
#pragma once

#include <string>

namespace lockstep {

// The file with symbolic links resolved; empty if the address is in no program or library.
std::string library_of(const void* address);

}  // namespace lockstep
