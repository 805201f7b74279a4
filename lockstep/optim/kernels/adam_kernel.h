// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of Adam and AdamW in host memory: one pass over the elements of a parameter.
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

#include "lockstep/optim/kernels/undo_log.h"

namespace lockstep::optim {

// The constants of one step of a parameter.
struct AdamConstants {
  double beta1;
  double beta2;
  double eps;
  double l2;          // Adam's weight decay, which is added to the gradient
  double keep;        // AdamW: the factor that decays the parameter itself, 1 without decay
  double step_size;   // the learning rate over the first moment's bias correction
  double root_scale;  // one over the root of the second moment's bias correction
  double gradient_factor = 1;  // gradients are multiplied by it first
};

// Flat memory, element by element, except that the gradient begins with the first element that is
// updated. The moments are of state_type(the parameter's type).
struct AdamMemory {
  void* parameter;
  const void* gradient;  // of the parameter's type
  void* exp_avg;
  void* exp_avg_sq;
  void* max_exp_avg_sq;  // null unless amsgrad
};

// Updates the elements from begin to end. An element's bits do not depend on the range, nor on the
// processor. Half types are computed in float. The type must be one that can_update() takes. With a
// log, old contents are kept there, array after array in the order of the members.
void update_adam(const AdamMemory& memory, std::int64_t begin, std::int64_t end,
                 at::ScalarType type, const AdamConstants& constants, const UndoLog* log = nullptr);

}  // namespace lockstep::optim
