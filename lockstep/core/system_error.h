// SPDX-License-Identifier: BSD-3-Clause
// Reasons for system calls that failed, for messages, and a check of the limit on descriptors.
#pragma once

#include <string>

namespace lockstep {

// strerror(error); if a limit on descriptors was met, also which one, and its value.
std::string reason_of(int error);

// BackendError, which begins with `where`, unless this process can open so many more descriptors:
// for libraries that do not say what they lack.
void require_descriptors(const std::string& where, int count);

}  // namespace lockstep
