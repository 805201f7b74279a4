// SPDX-License-Identifier: BSD-3-Clause
// What a training will take of memory with any number of ranks: a few steps of one process on one
// batch show its parts, and a formula puts them together.
#pragma once

#include <cstdint>

#include "tools/bench/training.h"

namespace lockstep::bench {

// Bytes on one rank, in private memory and its part of shared memory. Mapped files, such as
// libraries, do not count.
struct MemoryPlan {
  OptimizerKind optimizer = OptimizerKind::torch;
  AmpKind amp = AmpKind::none;
  int ranks = 1;
  // A process that has trained the smallest model.
  std::int64_t process = 0;
  // With buffers; of parameters that ranks share as one copy, a rank's proportional part.
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  // The optimizer's, or a rank's share of it.
  std::int64_t state = 0;
  // A batch, what forward saves, and the temporary tensors of a step, at their peak.
  std::int64_t activations = 0;
  // Memory of freed tensors that the allocator could not use again.
  std::int64_t kept = 0;

  std::int64_t of_rank() const {
    return process + parameters + gradients + state + activations + kept;
  }
  std::int64_t of_all() const { return ranks * of_rank(); }
};

// Trains the step's model on the CPU in this process, which should be new and do nothing else.
MemoryPlan plan_memory(const TrainingStep& step, int ranks);

}  // namespace lockstep::bench
