// SPDX-License-Identifier: BSD-3-Clause
// What FusedOptimizer needs of an algorithm, and what algorithms use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/dense_parameter.h"
#include "lockstep/tensor/kernels/stream_copy.h"

namespace lockstep::optim {

// Specialized for the state of each algorithm, with these members:
//   std::string_view name();                       the class as users write it
//   void update(optimizer, parameter, options, gradient_factor);  updates a DenseParameter in host
//                                                  memory and its state
//   void update_on_device(optimizer, parameters, options, gradient_factor);  the same for a list of
//                                                  them on another device, all of one type
//   std::vector<at::Tensor*> tensors(state);       the same number of them always; may be undefined
//   int kinds(options);                            how many of them an update needs, from the first
//   tensor_names(), an array of strings;           what Python calls these tensors
//   std::int64_t steps(state);                     0 if the state does not count them
//   void set_steps(state, steps);
//   std::vector<std::string> describe(options);    one line per option, such as "lr 0.001"
template <class State>
struct Algorithm;

// Calls update(begin, end, gradient, log) for ranges that make up all elements, on several threads
// if there are many; the gradient is that of the elements from `begin` on. Where ranks share
// memory, it is one pass from all ranks' gradients to all ranks' values.
template <class Update>
void update_in_parallel(const DenseParameter& parameter, const Update& update) {
  if (parameter.is_logged()) return parameter.update_blocks(update);
  at::parallel_for(0, parameter.values().numel(), kGrain,
                   [&](std::int64_t begin, std::int64_t end) {
                     if (!parameter.has_other_ranks()) {
                       return update(begin, end, parameter.gradient_from(begin), nullptr);
                     }
                     while (begin < end) {
                       const std::int64_t block_end = std::min(begin + kBlock, end);
                       parameter.average_gradients(begin, block_end);
                       update(begin, block_end, parameter.gradient_from(begin), nullptr);
                       parameter.store_copies(begin, block_end);
                       begin = block_end;
                     }
                     finish_streaming();
                   });
}

// The optimizer's state of a parameter, made when it is first asked for.
template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[libtorch::state_key(parameter)];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

// Null if the parameter has none.
template <class State>
State* find_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(libtorch::state_key(parameter));
  return found == optimizer.state().end() ? nullptr : static_cast<State*>(found->second.get());
}

// The updates of parameters that have these options: in host memory one by one, elsewhere in lists
// of one device and one type.
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
