// SPDX-License-Identifier: BSD-3-Clause
// TCP connections between all ranks, for transports that move bytes over them. Both ends of each
// connection have proved that they know the group's key; no other process gets one.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/remote/joining.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::remote {

// [connection][rank]; this rank's own place is empty. Non-blocking, and without keep-alive.
using Connections = std::vector<std::vector<ForkSafeFd>>;

// Blocks until this rank has `count` connections to each other rank. Meanwhile it listens at
// `host`, an address of this machine. TimeoutError names the ranks that did not connect. Also
// throws what Joining::check throws, within a second of the cause.
Connections connect_ranks(const Membership& membership, Joining& joining, const std::string& host,
                          int count, const Deadline& deadline);

}  // namespace lockstep::remote
