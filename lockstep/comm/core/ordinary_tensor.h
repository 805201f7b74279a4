// SPDX-License-Identifier: BSD-3-Clause
// Tensors for backends that need no memory of their own.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// An uninitialised tensor in ordinary memory, of which so many ranks of this machine make one each.
// BackendError with the size if there is not enough for all.
at::Tensor ordinary_tensor(at::IntArrayRef sizes, const at::TensorOptions& options, int ranks);

}  // namespace lockstep
