// SPDX-License-Identifier: BSD-3-Clause
// Updates of parameters that are not in host memory: by libtorch's fused kernels where it has them
// for the device and the types, else by its tensor operations.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/optim/kernels/adam_kernel.h"
#include "lockstep/optim/kernels/sgd_kernel.h"

namespace lockstep::optim {

// Lists of equal length, or empty: tensors of one device and one type. State has the type that
// state_type() gives for the values.
struct AdamTensors {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> exp_avgs;
  std::vector<at::Tensor> exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // empty unless amsgrad
};

struct SgdTensors {
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> momentum_buffers;  // empty without momentum
};

// What libtorch's fused Adam and AdamW take instead of AdamConstants.
struct AdamStep {
  double lr;
  double weight_decay;
  bool decays_directly;  // AdamW
  std::int64_t number;   // 1 in the first step
};

// Fused falls back to composed where libtorch lacks the kernel.
enum class Kernels { fused, composed };

// For tensors like these values.
Kernels kernels_for(const at::Tensor& values);

// Without gradient mode. With a gradient_factor, fused kernels also multiply the gradients in
// place.
void update_adam_on_device(const AdamTensors& tensors, const AdamConstants& constants,
                           const AdamStep& step, Kernels kernels);
void update_sgd_on_device(const SgdTensors& tensors, const SgdConstants& constants,
                          Kernels kernels);

}  // namespace lockstep::optim
