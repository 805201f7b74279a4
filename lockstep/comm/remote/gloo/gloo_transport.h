// SPDX-License-Identifier: BSD-3-Clause
// Moves bytes over c10d's ProcessGroupGloo.
#pragma once

#include <chrono>
#include <memory>

#include "lockstep/comm/remote/joining.h"
#include "lockstep/comm/remote/transport.h"
#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Blocks until this rank is connected to all others, from the address that leads to rank 0 or from
// an interface that GLOO_SOCKET_IFNAME allows. A message may take as long as the timeout.
// TimeoutError, and what Joining::check throws.
std::unique_ptr<remote::Transport> make_gloo_transport(const Membership& membership,
                                                       remote::Joining& joining,
                                                       std::chrono::milliseconds timeout,
                                                       const Deadline& deadline);

}  // namespace lockstep
