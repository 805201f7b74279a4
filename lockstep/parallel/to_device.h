// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// To a GPU without waiting: what comes later on its stream does. Nothing would wait for a copy to
// the CPU, which could be read before it is there.
inline at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace lockstep
