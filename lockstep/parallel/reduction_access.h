// SPDX-License-Identifier: BSD-3-Clause
// Access to the reduction of a wrapped model that optimizers and clipping need, and users do not.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

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

// What to tell a user who wants to do `what` with gradients that did not come from a wrapped model.
inline std::string not_reduced(std::string_view what) {
  return fmt::format(
      "parameters have gradients, but no backward of the wrapped model has reduced them. Call the "
      "wrapper, and backward() of its result, before {}",
      what);
}

}  // namespace lockstep
