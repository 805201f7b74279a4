// SPDX-License-Identifier: BSD-3-Clause
// Tensors in ordinary memory, for backends that need no memory of their own.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// An uninitialized tensor. `ranks` is how many ranks of this machine make one each; BackendError
// with the size if there is not enough memory for all of them.
at::Tensor ordinary_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, int ranks);

}  // namespace lockstep
