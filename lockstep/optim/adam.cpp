// SPDX-License-Identifier: BSD-3-Clause
// Adam and AdamW, in one pass. They differ in how they decay weights.
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/device_update.h"
#include "lockstep/optim/fused_optimizer.h"
#include "lockstep/optim/kernels/adam_kernel.h"

namespace lockstep::optim {
namespace {

constexpr bool decays_directly(const torch::optim::AdamOptions&) {
  return false;
}
constexpr bool decays_directly(const torch::optim::AdamWOptions&) {
  return true;
}

void decay(const torch::optim::AdamOptions& options, AdamConstants& constants) {
  constants.l2 = options.weight_decay();
}

void decay(const torch::optim::AdamWOptions& options, AdamConstants& constants) {
  constants.keep = 1 - options.lr() * options.weight_decay();
}

template <class Options>
AdamConstants constants_of(const Options& options, std::int64_t step, double gradient_factor) {
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(step);
  AdamConstants constants{.beta1 = beta1,
                          .beta2 = beta2,
                          .eps = options.eps(),
                          .l2 = 0,
                          .keep = 1,
                          .step_size = options.lr() / (1 - std::pow(beta1, steps)),
                          .root_scale = 1 / std::sqrt(1 - std::pow(beta2, steps)),
                          .gradient_factor = gradient_factor};
  decay(options, constants);
  return constants;
}

}  // namespace

// What Adam and AdamW have in common.
template <class State, class Options>
struct AdamAlgorithm {
  static void update(torch::optim::Optimizer& optimizer, const DenseParameter& parameter,
                     const Options& options, double gradient_factor) {
    State& state = state_of<State>(optimizer, parameter.parameter());
    parameter.fit(state.exp_avg(), 0);
    parameter.fit(state.exp_avg_sq(), 1);
    AdamMemory memory{.parameter = parameter.values().data_ptr(),
                      .gradient = nullptr,
                      .exp_avg = state.exp_avg().data_ptr(),
                      .exp_avg_sq = state.exp_avg_sq().data_ptr(),
                      .max_exp_avg_sq = nullptr};
    if (options.amsgrad()) {
      parameter.fit(state.max_exp_avg_sq(), 2);
      memory.max_exp_avg_sq = state.max_exp_avg_sq().data_ptr();
    }
    const AdamConstants constants = constants_of(options, ++state.step(), gradient_factor);
    update_in_parallel(parameter, [&](std::int64_t begin, std::int64_t end, const void* gradient,
                                      const UndoLog* log) {
      AdamMemory part = memory;
      part.gradient = gradient;
      update_adam(part, begin, end, parameter.values().scalar_type(), constants, log);
    });
  }

  // Parameters that have taken the same number of steps are updated together.
  static void update_on_device(torch::optim::Optimizer& optimizer,
                               const std::vector<DenseParameter>& parameters,
                               const Options& options, double gradient_factor) {
    std::map<std::int64_t, AdamTensors> tensors_at;
    for (const DenseParameter& parameter : parameters) {
      State& state = state_of<State>(optimizer, parameter.parameter());
      AdamTensors& tensors = tensors_at[++state.step()];
      parameter.fit(state.exp_avg(), 0);
      parameter.fit(state.exp_avg_sq(), 1);
      tensors.values.push_back(parameter.values());
      tensors.gradients.push_back(parameter.gradient());
      tensors.exp_avgs.push_back(state.exp_avg());
      tensors.exp_avg_sqs.push_back(state.exp_avg_sq());
      if (!options.amsgrad()) continue;
      parameter.fit(state.max_exp_avg_sq(), 2);
      tensors.max_exp_avg_sqs.push_back(state.max_exp_avg_sq());
    }
    for (const auto& [step, tensors] : tensors_at) {
      update_adam_on_device(tensors, constants_of(options, step, gradient_factor),
                            {.lr = options.lr(),
                             .weight_decay = options.weight_decay(),
                             .decays_directly = decays_directly(options),
                             .number = step},
                            kernels_for(tensors.values.front()));
    }
  }

  static int kinds(const Options& options) { return options.amsgrad() ? 3 : 2; }
  static std::vector<at::Tensor*> tensors(State& state) {
    return {&state.exp_avg(), &state.exp_avg_sq(), &state.max_exp_avg_sq()};
  }
  static std::array<std::string, 3> tensor_names() {
    return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  }
  static std::int64_t steps(const State& state) { return state.step(); }
  static void set_steps(State& state, std::int64_t steps) { state.step(steps); }

  static std::vector<std::string> describe(const Options& options) {
    const auto [beta1, beta2] = options.betas();
    return {fmt::format("lr {}", options.lr()), fmt::format("betas {}, {}", beta1, beta2),
            fmt::format("eps {}", options.eps()),
            fmt::format("weight_decay {}", options.weight_decay()),
            fmt::format("amsgrad {}", options.amsgrad())};
  }
};

template <>
struct Algorithm<torch::optim::AdamParamState>
    : AdamAlgorithm<torch::optim::AdamParamState, torch::optim::AdamOptions> {
  static std::string_view name() { return "lockstep::optim::Adam"; }
};

template <>
struct Algorithm<torch::optim::AdamWParamState>
    : AdamAlgorithm<torch::optim::AdamWParamState, torch::optim::AdamWOptions> {
  static std::string_view name() { return "lockstep::optim::AdamW"; }
};

template class FusedOptimizer<torch::optim::Adam, torch::optim::AdamOptions,
                              torch::optim::AdamParamState>;
template class FusedOptimizer<torch::optim::AdamW, torch::optim::AdamWOptions,
                              torch::optim::AdamWParamState>;

}  // namespace lockstep::optim
