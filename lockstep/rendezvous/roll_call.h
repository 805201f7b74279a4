// SPDX-License-Identifier: BSD-3-Clause
// Before ranks connect to each other they see whether they are one group: every rank once, by one
// backend, in a world of one size.
#pragma once

#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// A collective call over the membership's store, blocking; rank 0 collects, and tells all what it
// found. UsageError on all ranks names both processes that have one rank, or both backends or world
// sizes where they differ; TimeoutError on all that wait names the ranks that did not come.
void call_roll(const Membership& membership, const std::string& backend, const Deadline& deadline);

// For a rank 0 that finds another one's store where it was to serve its own: `membership` has that
// store. UsageError names both, and the other's group is told if it still waits for ranks; else it
// is another job's, and BackendError says so after `error`.
[[noreturn]] void refuse_second_rank_0(const Membership& membership, const std::string& error);

}  // namespace lockstep
