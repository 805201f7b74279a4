// SPDX-License-Identifier: BSD-3-Clause
// Moves bytes by c10d's ProcessGroupGloo.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/collective/network/carrier.h"
#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Blocks until all ranks are connected, each from `own_host`, or from the interface that
// GLOO_SOCKET_IFNAME names. What is sent may take as long as the timeout.
std::unique_ptr<network::Carrier> make_gloo_carrier(const Membership& membership,
                                                    const std::string& own_host,
                                                    std::chrono::milliseconds timeout,
                                                    const Deadline& deadline);

}  // namespace lockstep
