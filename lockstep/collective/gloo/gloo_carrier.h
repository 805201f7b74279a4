// SPDX-License-Identifier: BSD-3-Clause
// Moves bytes by c10d's ProcessGroupGloo.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/collective/network/carrier.h"
#include "lockstep/collective/network/joining.h"
#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Blocks until this rank is connected to all others, from the address that leads to rank 0 or from
// the interface that GLOO_SOCKET_IFNAME names. What is sent may take as long as the timeout.
// TimeoutError, and what Joining::check throws.
std::unique_ptr<network::Carrier> make_gloo_carrier(const Membership& membership,
                                                    network::Joining& joining,
                                                    std::chrono::milliseconds timeout,
                                                    const Deadline& deadline);

}  // namespace lockstep
