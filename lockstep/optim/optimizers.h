// SPDX-License-Identifier: BSD-3-Clause
// SGD, Adam and AdamW that read and write each element once a step, where libtorch's own run about
// ten small kernels a parameter:
//
//   lockstep::optim::Adam optimizer(net->parameters(), 1e-3);
//
// They are libtorch's optimizers with another step(): options and their defaults, parameter groups,
// closures, learning-rate schedulers, and torch::save and torch::load of the optimizer.
// docs/optimizers.md lists what differs.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

namespace lockstep::optim {

// Constructors keep a parameter that a group lists twice only once. They throw UsageError if a
// parameter is in two groups, and c10::Error for what libtorch refuses.
//
// step() calls the closure, if there is one, and returns its loss. Then it updates the parameters
// that have a gradient, with libtorch's threads if they are large. It must not run at the same time
// as a forward or backward of the same parameters. Before it changes a parameter, it throws
// UsageError if one cannot be updated: its gradient is sparse or of another type, it is not of a
// real floating-point type, or a group that was added later lists it again. If any parameter is not
// on the CPU, the step is libtorch's own.

class SGD : public torch::optim::SGD {
 public:
  explicit SGD(std::vector<torch::optim::OptimizerParamGroup> groups,
               torch::optim::SGDOptions defaults);
  explicit SGD(std::vector<at::Tensor> parameters, torch::optim::SGDOptions defaults);

  at::Tensor step(LossClosure closure = nullptr) override;
};

class Adam : public torch::optim::Adam {
 public:
  explicit Adam(std::vector<torch::optim::OptimizerParamGroup> groups,
                torch::optim::AdamOptions defaults = {});
  explicit Adam(std::vector<at::Tensor> parameters, torch::optim::AdamOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
};

class AdamW : public torch::optim::AdamW {
 public:
  explicit AdamW(std::vector<torch::optim::OptimizerParamGroup> groups,
                 torch::optim::AdamWOptions defaults = {});
  explicit AdamW(std::vector<at::Tensor> parameters, torch::optim::AdamWOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace lockstep::optim
