// SPDX-License-Identifier: BSD-3-Clause
// What an optimizer updates, and optimizers made for it.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {

struct Trained {
  std::vector<at::Tensor> parameters;
  DistributedDataParallelBase* wrapper = nullptr;  // null for a net that is not wrapped in one
};

// An optimizer of lockstep::optim: sharded over the wrapper's ranks, if there is a wrapper.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Trained& trained,
                                                        const Options& options) {
  if (trained.wrapper != nullptr) return std::make_unique<Optimizer>(*trained.wrapper, options);
  return std::make_unique<Optimizer>(trained.parameters, options);
}

}  // namespace lockstep
