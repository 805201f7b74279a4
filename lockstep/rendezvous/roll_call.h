// SPDX-License-Identifier: BSD-3-Clause
// Checks, before ranks connect to each other, that they form one group: each rank once, with one
// backend and one world size.
#pragma once

#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/process_identity.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Collective and blocking, over the membership's store: rank 0 collects all entries and tells the
// ranks its verdict. Returns the processes of all ranks.
//
// UsageError on all ranks names two processes with the same rank, or backends or world sizes that
// differ. PeerLost names a rank that joined and whose process, on rank 0's machine, has ended
// since, or rank 0 itself. StoreLost if the store ended with rank 0. TimeoutError on all waiting
// ranks names the missing ones.
std::vector<ProcessIdentity> call_roll(const Membership& membership, const std::string& backend,
                                       const Deadline& deadline);

// Call it on a rank 0 that finds the store of another rank 0 at its own address; `membership` has
// that store.
// UsageError names both, and the other's group is told if it still waits for ranks. Otherwise the
// store belongs to another job, and the BackendError adds that to `error`.
[[noreturn]] void refuse_second_rank_0(const Membership& membership, const Error& error);

}  // namespace lockstep
