// SPDX-License-Identifier: BSD-3-Clause
// Why a rank ended a group for all of its ranks.
#pragma once

#include <cstdint>
#include <exception>
#include <string>

namespace lockstep {

enum class AbortCause : std::uint32_t {
  none,
  requested,   // ProcessGroup::abort
  timed_out,   // its wait timed out
  mismatched,  // ranks made different calls
  lost,        // it saw a peer die
  left,        // it saw a peer leave too early
};

// What the rank tells its peers.
struct AbortNotice {
  int rank = -1;
  AbortCause cause = AbortCause::none;
  // The rank that it lost or waited for; -1 if none.
  int lost_rank = -1;
  // The job rank at fault; -1 if unknown.
  int culprit = -1;
  std::string reason = {};
};

// The error that the other ranks throw; its type depends on the cause.
std::exception_ptr error_of(const AbortNotice& notice, const std::string& message);

}  // namespace lockstep
