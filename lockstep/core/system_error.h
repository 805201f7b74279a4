// SPDX-License-Identifier: BSD-3-Clause
// Reasons for failed system calls, for messages; and a check of the descriptor limit.
#pragma once

#include <string>

#include "lockstep/core/error.h"

namespace lockstep {

// strerror(error); if a descriptor limit was reached, also which one and its value.
std::string reason_of(int error);

// Throws BackendError in `context` unless this process can open `count` more descriptors. For
// libraries that do not say what they lack.
void require_descriptors(const ErrorContext& context, int count);

}  // namespace lockstep
