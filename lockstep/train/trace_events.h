// SPDX-License-Identifier: BSD-3-Clause
// The spans of one rank as events of Chrome's trace format, for Perfetto and chrome://tracing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/trace_span.h"

namespace lockstep {

struct TracedRank {
  int rank = 0;
  // The text beside the rank's name: its host, and what is missing.
  std::string label = {};
  // Nanoseconds to add to the times of the spans, so that the spans of all ranks begin near 0.
  std::int64_t shift = 0;
  std::vector<RecordedSpan> spans = {};
};

// The process number (pid) of rank 0 in a trace; the other ranks follow. Not 0: Perfetto takes
// process 0 for the idle process of a kernel.
inline constexpr int kFirstTracedProcess = 1'000'000;

// Returns the events, separated by ",\n". The first thread of a rank trains. Reductions in flight
// follow, on as few threads as show them without overlap, then the writer of checkpoints and other
// threads.
std::string trace_events(TracedRank traced);

}  // namespace lockstep
