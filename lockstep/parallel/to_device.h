// SPDX-License-Identifier: BSD-3-Clause
// Copies tensors to a device without blocking where that is safe.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Copies to a GPU do not block: later work on its stream waits for them. Copies to the CPU block,
// since nothing else would wait and the copy could be read too early.
inline at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace lockstep
