// SPDX-License-Identifier: BSD-3-Clause
// Ranks that have batches left tell the others what they do next, so that those can take part
// (join.h).
#pragma once

#include <cstdint>

#include "lockstep/comm/process_group.h"

namespace lockstep {

enum class JoinStep : std::int32_t {
  none,  // no batches are left
  broadcast_buffers,
  reduce_gradients,
};

struct AnnouncedStep {
  JoinStep step = JoinStep::none;  // none if no rank has batches left
  int root = 0;                    // the first rank that has batches left
};

// Collective, blocking: each rank passes its own next step. UsageError on every rank if two ranks
// are about to do different things.
AnnouncedStep announce_step(ProcessGroup& group, JoinStep mine);

}  // namespace lockstep
