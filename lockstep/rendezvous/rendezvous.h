// SPDX-License-Identifier: BSD-3-Clause
// How ranks find each other.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/rendezvous/membership.h"

namespace lockstep {

struct RendezvousOptions {
  // env://, tcp://host:port or file:///path; see init_process_group.h.
  std::string init_method = "env://";
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

// Says who this process is, and connects it to the store where the ranks meet; does not wait for
// the other ranks. UsageError names what is missing, malformed or contradictory.
Membership rendezvous(const RendezvousOptions& options);

// Who env:// would make of this process, without a store and without connecting to anything.
// Nothing if no variable of a launcher is set; UsageError as from meet.
std::optional<Membership> membership_in_environment();

}  // namespace lockstep
