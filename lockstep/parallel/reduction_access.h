// SPDX-License-Identifier: BSD-3-Clause
// Access to the reduction of a wrapped model that optimizers and clipping need, and users do not.
#pragma once

#include <memory>

#include "lockstep/parallel/backward_reduction.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {

class ReductionAccess {
 public:
  // Null in a group of one rank, unless finite gradients are checked there.
  static std::shared_ptr<BackwardReduction> of(const DistributedDataParallelBase& model) {
    return model.reducer_.reduction_;
  }
};

}  // namespace lockstep
