// SPDX-License-Identifier: BSD-3-Clause
// Gram-Schmidt orthogonalization of narrow matrices.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Makes the columns of a 2-D matrix orthonormal, in place; a column that depends on earlier ones
// becomes zero. `epsilon` is added to each column's norm before the division. Computed in double on
// the CPU by plain loops, so that equal matrices have equal results on every rank, whatever its
// processor or number of threads. Waits for the device.
void orthogonalize(const at::Tensor& matrix, double epsilon);

}  // namespace lockstep
