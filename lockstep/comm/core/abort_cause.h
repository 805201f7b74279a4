// SPDX-License-Identifier: BSD-3-Clause
// Why a rank has ended a group for all of its ranks.
#pragma once

#include <cstdint>

namespace lockstep {

enum class AbortCause : std::uint32_t {
  none,
  requested,   // ProcessGroup::abort
  timed_out,   // it waited in vain
  mismatched,  // ranks made different calls
  lost,        // it saw a peer die
  left,        // it saw a peer leave too early
};

}  // namespace lockstep
