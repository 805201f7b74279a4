// SPDX-License-Identifier: BSD-3-Clause
// Adam and AdamW, in one pass. They differ in how they decay weights.
#include <cmath>
#include <cstdint>
#include <tuple>
#include <utility>

#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/kernels/adam_kernel.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep::optim {
namespace {

using torch::optim::AdamOptions;
using torch::optim::AdamParamState;
using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

constexpr auto kAdam = "lockstep::optim::Adam";
constexpr auto kAdamW = "lockstep::optim::AdamW";

// The constants without weight decay.
template <class Options>
AdamConstants constants_of(const Options& options, std::int64_t step) {
  const auto [beta1, beta2] = options.betas();
  const auto steps = static_cast<double>(step);
  return {.beta1 = beta1,
          .beta2 = beta2,
          .eps = options.eps(),
          .l2 = 0,
          .keep = 1,
          .step_size = options.lr() / (1 - std::pow(beta1, steps)),
          .root_scale = 1 / std::sqrt(1 - std::pow(beta2, steps))};
}

// The next step's constants; the state counts the step.
AdamConstants next_step(const AdamOptions& options, AdamParamState& state) {
  AdamConstants constants = constants_of(options, ++state.step());
  constants.l2 = options.weight_decay();
  return constants;
}

AdamConstants next_step(const AdamWOptions& options, AdamWParamState& state) {
  AdamConstants constants = constants_of(options, ++state.step());
  constants.keep = 1 - options.lr() * options.weight_decay();
  return constants;
}

template <class ParamState, class Options>
void update_by_adam(torch::optim::Optimizer& optimizer, const DenseParameter& parameter,
                    const Options& options) {
  ParamState& state = state_of<ParamState>(optimizer, parameter);
  parameter.fit(state.exp_avg());
  parameter.fit(state.exp_avg_sq());
  AdamMemory memory{.parameter = parameter.values().data_ptr(),
                    .gradient = parameter.gradient().data_ptr(),
                    .exp_avg = state.exp_avg().data_ptr(),
                    .exp_avg_sq = state.exp_avg_sq().data_ptr(),
                    .max_exp_avg_sq = nullptr};
  if (options.amsgrad()) {
    parameter.fit(state.max_exp_avg_sq());
    memory.max_exp_avg_sq = state.max_exp_avg_sq().data_ptr();
  }
  const AdamConstants constants = next_step(options, state);
  update_in_parallel(parameter, [&](std::int64_t begin, std::int64_t end) {
    update_adam(memory, begin, end, parameter.values().scalar_type(), constants);
  });
}

}  // namespace

Adam::Adam(std::vector<torch::optim::OptimizerParamGroup> groups, AdamOptions defaults)
    : torch::optim::Adam(without_repeats(kAdam, std::move(groups)), std::move(defaults)) {}

Adam::Adam(std::vector<at::Tensor> parameters, AdamOptions defaults)
    : Adam({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor Adam::step(LossClosure closure) {
  return fused_step<torch::optim::Adam, AdamOptions>(kAdam, *this, closure,
                                                     update_by_adam<AdamParamState, AdamOptions>);
}

AdamW::AdamW(std::vector<torch::optim::OptimizerParamGroup> groups, AdamWOptions defaults)
    : torch::optim::AdamW(without_repeats(kAdamW, std::move(groups)), std::move(defaults)) {}

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults)
    : AdamW({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor AdamW::step(LossClosure closure) {
  return fused_step<torch::optim::AdamW, AdamWOptions>(
      kAdamW, *this, closure, update_by_adam<AdamWParamState, AdamWOptions>);
}

}  // namespace lockstep::optim
