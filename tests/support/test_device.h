// SPDX-License-Identifier: BSD-3-Clause
// Where tests that need no particular device compute: scripts/gpu-check runs them on a GPU.
#pragma once

#include <c10/core/Device.h>
#include <torch/cuda.h>

namespace lockstep::testing {

// The first GPU, or the CPU on machines without one.
inline c10::Device test_device() {
  return torch::cuda::is_available() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

}  // namespace lockstep::testing
