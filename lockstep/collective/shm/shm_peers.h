// SPDX-License-Identifier: BSD-3-Clause
// The ranks of one machine as processes that map each other's memory.
#pragma once

#include "lockstep/collective/memory/peers.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::shm {

// Blocks until all ranks have joined; see PeerMesh for the errors.
std::unique_ptr<memory::Peers> make_shm_peers(const Membership& membership,
                                              const Deadline& deadline);

}  // namespace lockstep::shm
