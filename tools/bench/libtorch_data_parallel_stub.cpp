// SPDX-License-Identifier: BSD-3-Clause
// Replaces libtorch_data_parallel.cpp in builds with a libtorch without CUDA, or without the
// headers of CUDA's libraries.
#include "lockstep/core/error.h"
#include "tools/bench/dp_bench.h"

namespace lockstep::bench {

at::Tensor libtorch_data_parallel(const torch::nn::Sequential&, const at::Tensor&,
                                  const std::vector<at::Device>&) {
  throw BackendError(
      "libtorch's data_parallel is for GPUs: build Lockstep with a libtorch that has CUDA, and "
      "with the headers of CUDA's libraries (cusolverDn.h)");
}

}  // namespace lockstep::bench
