// SPDX-License-Identifier: BSD-3-Clause
// Tensors for backends that need no memory of their own.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// An uninitialised tensor in ordinary memory. BackendError with the size if there is not enough.
at::Tensor ordinary_tensor(at::IntArrayRef sizes, const at::TensorOptions& options);

}  // namespace lockstep
