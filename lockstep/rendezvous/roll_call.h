// SPDX-License-Identifier: BSD-3-Clause
// Before ranks connect to each other they check that they form one group: every rank once, with one
// backend and one world size.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/process_identity.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// A collective call over the membership's store, blocking; rank 0 collects, and tells all what it
// found. UsageError on all ranks names the two processes that have one rank, or the backends or
// world sizes that differ; PeerLost a rank that came, and whose process on the machine of rank 0
// has ended since, or rank 0 itself; StoreLost if the store ended with it; TimeoutError on all
// ranks that wait names those that did not come. Returns the processes of all ranks.
std::vector<ProcessIdentity> call_roll(const Membership& membership, const std::string& backend,
                                       const Deadline& deadline);

// For a rank 0 that finds another one's store where it was to serve its own: `membership` has that
// store. UsageError names both, and the other's group is told if it still waits for ranks; else it
// is another job's, and BackendError says so after `error`.
[[noreturn]] void refuse_second_rank_0(const Membership& membership, const std::string& error);

}  // namespace lockstep
