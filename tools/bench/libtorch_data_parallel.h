// SPDX-License-Identifier: BSD-3-Clause
// libtorch's own function for several GPUs in one process, measured next to DataParallel.
#pragma once

#include <vector>

#include <torch/nn/modules/container/sequential.h>

namespace lockstep::bench {

// torch::nn::parallel::data_parallel. BackendError if libtorch has no CUDA.
at::Tensor libtorch_data_parallel(const torch::nn::Sequential& net, const at::Tensor& input,
                                  const std::vector<at::Device>& devices);

}  // namespace lockstep::bench
