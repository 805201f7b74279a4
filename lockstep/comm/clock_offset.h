// SPDX-License-Identifier: BSD-3-Clause
// Compares the monotonic clocks of the ranks' machines, so that times of all ranks can be shown on
// one axis.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct ClockOffset {
  // The time on rank 0's clock minus the time on this rank's clock.
  std::int64_t nanoseconds = 0;
  // The offset was at most this far from the true one when it was measured. 0 for a rank that
  // shares rank 0's clock. Clocks of different machines drift apart afterwards.
  std::int64_t error = 0;
};

// Identifies the clock that monotonic_nanoseconds() reads on this machine.
std::string name_of_this_clock();

// Collective. Ranks whose clocks have the same name share a clock. For every other clock, one rank
// asks rank 0 for its time a few times, one rank after another; the shortest answer counts.
ClockOffset measure_clock_offset(std::string_view clock, ProcessGroup& group);

}  // namespace lockstep
