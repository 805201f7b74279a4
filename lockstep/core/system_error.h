// SPDX-License-Identifier: BSD-3-Clause
// What the system says of a call that failed, for messages.
#pragma once

#include <string>

namespace lockstep {

// strerror(error), and where a limit on descriptors was met, which one, and how much it is.
std::string reason_of(int error);

}  // namespace lockstep
