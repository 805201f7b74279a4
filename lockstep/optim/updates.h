// SPDX-License-Identifier: BSD-3-Clause
// Decides how parameters are updated: in host memory one by one, elsewhere in lists.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/dense_parameter.h"

namespace lockstep::optim {

// The updates of parameters that have these options. A list has one device and one type.
template <class Options, class State>
class Updates {
 public:
  // Options are read when parameters are updated. Gradients are multiplied by the factor.
  Updates(torch::optim::Optimizer& optimizer, const torch::optim::OptimizerOptions& options,
          double gradient_factor)
      : optimizer_(optimizer),
        options_(static_cast<const Options&>(options)),
        gradient_factor_(gradient_factor) {}

  void add(const DenseParameter& parameter) {
    const at::Tensor& values = parameter.values();
    if (values.is_cpu()) {
      Algorithm<State>::update(optimizer_, parameter, options_, gradient_factor_);
      return parameter.commit();
    }
    for (std::vector<DenseParameter>& list : lists_) {
      const at::Tensor& other = list.front().values();
      if (other.device() == values.device() && other.scalar_type() == values.scalar_type()) {
        return list.push_back(parameter);
      }
    }
    lists_.push_back({parameter});
  }

  void finish() {
    for (const std::vector<DenseParameter>& list : lists_) {
      Algorithm<State>::update_on_device(optimizer_, list, options_, gradient_factor_);
      for (const DenseParameter& parameter : list) parameter.commit();
    }
    lists_.clear();
  }

 private:
  torch::optim::Optimizer& optimizer_;
  const Options& options_;
  double gradient_factor_;
  std::vector<std::vector<DenseParameter>> lists_;
};

}  // namespace lockstep::optim
