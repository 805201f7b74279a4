// SPDX-License-Identifier: BSD-3-Clause
// SGD with momentum, in one pass.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/device_update.h"
#include "lockstep/optim/fused_optimizer.h"
#include "lockstep/optim/kernels/sgd_kernel.h"

namespace lockstep::optim {

template <>
struct Algorithm<torch::optim::SGDParamState> {
  using State = torch::optim::SGDParamState;
  using Options = torch::optim::SGDOptions;

  static std::string_view name() { return "lockstep::optim::SGD"; }

  static SgdConstants constants_of(const Options& options, double gradient_factor) {
    return {.lr = options.lr(),
            .l2 = options.weight_decay(),
            .momentum = options.momentum(),
            .gradient_share = 1 - options.dampening(),
            .nesterov = options.nesterov(),
            .gradient_factor = gradient_factor};
  }

  static void update(torch::optim::Optimizer& optimizer, const DenseParameter& parameter,
                     const Options& options, double gradient_factor) {
    SgdConstants constants = constants_of(options, gradient_factor);
    SgdMemory memory{.parameter = parameter.values().data_ptr(),
                     .gradient = nullptr,
                     .momentum_buffer = nullptr};
    if (options.momentum() != 0) {
      at::Tensor& buffer = state_of<State>(optimizer, parameter.parameter()).momentum_buffer();
      if (!buffer.defined()) constants.gradient_share = 1;  // dampening begins with the second step
      parameter.fit(buffer, 0);
      memory.momentum_buffer = buffer.data_ptr();
    }
    update_in_parallel(parameter, [&](std::int64_t begin, std::int64_t end, const void* gradient,
                                      const UndoLog* log) {
      SgdMemory part = memory;
      part.gradient = gradient;
      update_sgd(part, begin, end, parameter.values().scalar_type(), constants, log);
    });
  }

  // Parameters that have a momentum already are updated together, and so are the others.
  static void update_on_device(torch::optim::Optimizer& optimizer,
                               const std::vector<DenseParameter>& parameters,
                               const Options& options, double gradient_factor) {
    SgdTensors first;
    SgdTensors later;
    for (const DenseParameter& parameter : parameters) {
      if (options.momentum() == 0) {
        later.values.push_back(parameter.values());
        later.gradients.push_back(parameter.gradient());
        continue;
      }
      at::Tensor& buffer = state_of<State>(optimizer, parameter.parameter()).momentum_buffer();
      SgdTensors& tensors = buffer.defined() ? later : first;
      parameter.fit(buffer, 0);
      tensors.values.push_back(parameter.values());
      tensors.gradients.push_back(parameter.gradient());
      tensors.momentum_buffers.push_back(buffer);
    }
    SgdConstants constants = constants_of(options, gradient_factor);
    if (!later.values.empty()) {
      update_sgd_on_device(later, constants, kernels_for(later.values.front()));
    }
    constants.gradient_share = 1;  // dampening begins with the second step
    if (!first.values.empty()) {
      update_sgd_on_device(first, constants, kernels_for(first.values.front()));
    }
  }

  static int kinds(const Options& options) { return options.momentum() != 0 ? 1 : 0; }
  static std::vector<at::Tensor*> tensors(State& state) { return {&state.momentum_buffer()}; }
  static std::array<std::string, 1> tensor_names() { return {"momentum_buffer"}; }
  static std::int64_t steps(const State&) { return 0; }
  static void set_steps(State&, std::int64_t) {}

  static std::vector<std::string> describe(const Options& options) {
    return {fmt::format("lr {}", options.lr()), fmt::format("momentum {}", options.momentum()),
            fmt::format("dampening {}", options.dampening()),
            fmt::format("weight_decay {}", options.weight_decay()),
            fmt::format("nesterov {}", options.nesterov())};
  }
};

template class FusedOptimizer<torch::optim::SGD, torch::optim::SGDOptions,
                              torch::optim::SGDParamState>;

}  // namespace lockstep::optim
