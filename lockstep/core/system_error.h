// SPDX-License-Identifier: BSD-3-Clause
// What the system says of a call that failed, for messages, and the limit that processes meet most.
#pragma once

#include <string>

namespace lockstep {

// strerror(error), and where a limit on descriptors was met, which one, and how much it is.
std::string reason_of(int error);

// BackendError, which begins with `where`, unless this process can open so many descriptors more:
// for libraries that do not say what they lack.
void require_descriptors(const std::string& where, int count);

}  // namespace lockstep
