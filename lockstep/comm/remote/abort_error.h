// SPDX-License-Identifier: BSD-3-Clause
// What a rank throws when another one has ended the group.
#pragma once

#include <exception>
#include <string>

#include "lockstep/comm/remote/peer_monitor.h"

namespace lockstep::remote {

// The type of the error depends on the cause of the abort.
std::exception_ptr abort_error(const PeerMonitor::Abort& abort, const std::string& message);

}  // namespace lockstep::remote
