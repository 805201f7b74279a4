// SPDX-License-Identifier: BSD-3-Clause
// Calls torch::nn::parallel::data_parallel.
#include <torch/nn/parallel/data_parallel.h>

#include "tools/bench/dp_bench.h"

namespace lockstep::bench {

at::Tensor libtorch_data_parallel(const torch::nn::Sequential& net, const at::Tensor& input,
                                  const std::vector<at::Device>& devices) {
  return torch::nn::parallel::data_parallel(net.ptr(), input, devices);
}

}  // namespace lockstep::bench
