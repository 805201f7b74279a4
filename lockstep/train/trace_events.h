// SPDX-License-Identifier: BSD-3-Clause
// One rank's spans as events of Chrome's trace format, which Perfetto and chrome://tracing show.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/core/trace_span.h"

namespace lockstep {

struct TracedRank {
  int rank = 0;
  // A line of text beside the rank's name: its host, and what is missing.
  std::string label = {};
  // Added to the spans' times, so that all ranks' times begin near 0.
  std::int64_t shift = 0;
  std::vector<RecordedSpan> spans = {};
};

// The process (pid) of rank 0; the other ranks follow. Perfetto takes process 0 for the idle
// process of a kernel.
inline constexpr int kFirstTracedProcess = 1'000'000;

// The events, separated by ",\n". The first thread of a rank trains; reductions in flight
// are on threads of their own, as few as they need without overlapping; the writer of checkpoints
// and other threads follow.
std::string trace_events(TracedRank traced);

}  // namespace lockstep
