// SPDX-License-Identifier: BSD-3-Clause
// What a rank throws when another one has ended the group.
#pragma once

#include <exception>
#include <string>

#include "lockstep/collective/network/lifeline.h"

namespace lockstep::network {

// The type of the error depends on the cause of the abort.
std::exception_ptr abort_error(const Lifeline::Abort& abort, const std::string& message);

}  // namespace lockstep::network
