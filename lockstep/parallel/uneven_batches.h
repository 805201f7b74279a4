// SPDX-License-Identifier: BSD-3-Clause
// Ranks with different numbers of batches: the steps that they announce to each other inside
// join(), and a hint at this cause where ranks time out or make different calls.
#pragma once

#include <cstdint>
#include <string>

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

// rethrow_within(context), with a hint if different numbers of batches may be the cause.
[[noreturn]] void rethrow_within_batches(const ErrorContext& context);

}  // namespace lockstep
