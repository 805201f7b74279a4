// SPDX-License-Identifier: BSD-3-Clause
// SGD with momentum, in one pass.
#include <cstdint>
#include <utility>

#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/kernels/sgd_kernel.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep::optim {
namespace {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

constexpr auto kSgd = "lockstep::optim::SGD";

void update_by_sgd(torch::optim::Optimizer& optimizer, const DenseParameter& parameter,
                   const SGDOptions& options) {
  SgdConstants constants{.lr = options.lr(),
                         .l2 = options.weight_decay(),
                         .momentum = options.momentum(),
                         .gradient_share = 1 - options.dampening(),
                         .nesterov = options.nesterov()};
  SgdMemory memory{.parameter = parameter.values().data_ptr(),
                   .gradient = parameter.gradient().data_ptr(),
                   .momentum_buffer = nullptr};
  if (options.momentum() != 0) {
    at::Tensor& buffer = state_of<SGDParamState>(optimizer, parameter).momentum_buffer();
    if (!buffer.defined()) constants.gradient_share = 1;  // dampening begins with the second step
    parameter.fit(buffer);
    memory.momentum_buffer = buffer.data_ptr();
  }
  update_in_parallel(parameter, [&](std::int64_t begin, std::int64_t end) {
    update_sgd(memory, begin, end, parameter.values().scalar_type(), constants);
  });
}

}  // namespace

SGD::SGD(std::vector<torch::optim::OptimizerParamGroup> groups, SGDOptions defaults)
    : torch::optim::SGD(without_repeats(kSgd, std::move(groups)), std::move(defaults)) {}

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions defaults)
    : SGD({torch::optim::OptimizerParamGroup(std::move(parameters))}, std::move(defaults)) {}

at::Tensor SGD::step(LossClosure closure) {
  return fused_step<torch::optim::SGD, SGDOptions>(kSgd, *this, closure, update_by_sgd);
}

}  // namespace lockstep::optim
