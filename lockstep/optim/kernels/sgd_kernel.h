// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of SGD in host memory: one pass over the elements of a parameter.
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "lockstep/optim/kernels/undo_log.h"

namespace lockstep::optim {

// The constants of one step of a parameter.
struct SgdConstants {
  double lr;
  double l2;              // the weight decay, which is added to the gradient
  double momentum;        // not used without a momentum buffer
  double gradient_share;  // of the momentum buffer: 1 in the first step, then 1 - dampening
  bool nesterov;
  double gradient_factor = 1;  // gradients are multiplied by it first
};

// Flat memory, element by element, except that the gradient begins with the first element that is
// updated. The momentum buffer is of state_type(the parameter's type).
struct SgdMemory {
  void* parameter;
  const void* gradient;   // of the parameter's type
  void* momentum_buffer;  // null without momentum; zeros before the first step
};

// Updates the elements from begin to end. An element's bits do not depend on the range, nor on the
// processor. Half types are computed in float. The type must be one that can_update() takes. With a
// log, old contents are kept there, array after array in the order of the members.
void update_sgd(const SgdMemory& memory, std::int64_t begin, std::int64_t end, at::ScalarType type,
                const SgdConstants& constants, const UndoLog* log = nullptr);

}  // namespace lockstep::optim
