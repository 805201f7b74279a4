// SPDX-License-Identifier: BSD-3-Clause
// The ranks of one machine as processes that map each other's memory.
#pragma once

#include "lockstep/comm/local/peers.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::shm {

// Blocks until all ranks have joined; see PeerMesh for the errors.
std::unique_ptr<local::Peers> make_shm_peers(const Membership& membership,
                                             const Deadline& deadline);

}  // namespace lockstep::shm
