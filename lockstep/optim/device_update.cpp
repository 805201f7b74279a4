// SPDX-License-Identifier: BSD-3-Clause
// Calls one kernel for all tensors of a list, or several for each.
#include "lockstep/optim/device_update.h"

#include <cstddef>
#include <vector>

#include <ATen/ATen.h>

#include "lockstep/libtorch_compat.h"
#include "lockstep/optim/kernels/element_types.h"

namespace lockstep::optim {
namespace {

// The values in the type that they are computed in: themselves, or a copy for write_back().
at::Tensor computed(const at::Tensor& tensor) {
  return tensor.to(state_type(tensor.scalar_type()));
}

void write_back(const at::Tensor& computed, const at::Tensor& values) {
  if (!computed.is_same(values)) values.copy_(computed);
}

// The gradient that an algorithm begins with.
template <class Constants>
at::Tensor slope(const at::Tensor& gradient, const at::Tensor& values, const Constants& constants) {
  at::Tensor slope = computed(gradient);
  if (constants.gradient_factor != 1) slope = slope.mul(constants.gradient_factor);
  return constants.l2 == 0 ? slope : slope.add(values, constants.l2);
}

// What the fused kernels divide gradients by; undefined if they need not.
at::Tensor gradient_scale(double gradient_factor, const at::Tensor& values) {
  if (gradient_factor == 1) return {};
  return at::full({}, 1 / gradient_factor, values.options().dtype(at::kFloat));
}

void update_one(const AdamTensors& tensors, std::size_t i, const AdamConstants& constants) {
  const at::Tensor values = computed(tensors.values[i]);
  const at::Tensor gradient = slope(tensors.gradients[i], values, constants);
  if (constants.keep != 1) values.mul_(constants.keep);
  const at::Tensor& mean =
      tensors.exp_avgs[i].mul_(constants.beta1).add_(gradient, 1 - constants.beta1);
  at::Tensor square = tensors.exp_avg_sqs[i]
                          .mul_(constants.beta2)
                          .addcmul_(gradient, gradient, 1 - constants.beta2);
  if (!tensors.max_exp_avg_sqs.empty()) {
    at::Tensor most = tensors.max_exp_avg_sqs[i];
    square = at::maximum_out(most, most, square);
  }
  values.addcdiv_(mean, square.sqrt().mul_(constants.root_scale).add_(constants.eps),
                  -constants.step_size);
  write_back(values, tensors.values[i]);
}

void update_one(const SgdTensors& tensors, std::size_t i, const SgdConstants& constants) {
  const at::Tensor values = computed(tensors.values[i]);
  at::Tensor direction = slope(tensors.gradients[i], values, constants);
  if (!tensors.momentum_buffers.empty()) {
    const at::Tensor& buffer = tensors.momentum_buffers[i]
                                   .mul_(constants.momentum)
                                   .add_(direction, constants.gradient_share);
    direction = constants.nesterov ? direction.add(buffer, constants.momentum) : buffer;
  }
  values.add_(direction, -constants.lr);
  write_back(values, tensors.values[i]);
}

}  // namespace

Kernels kernels_for(const at::Tensor& values) {
  const bool alike = values.scalar_type() == state_type(values.scalar_type());
  return values.is_cuda() && alike ? Kernels::fused : Kernels::composed;
}

void update_adam_on_device(const AdamTensors& tensors, const AdamConstants& constants,
                           const AdamStep& step, Kernels kernels) {
  if (kernels == Kernels::fused) {
    // The kernel reads the number from the device, one for each tensor.
    const at::Tensor number = at::full({}, static_cast<double>(step.number),
                                       tensors.values.front().options().dtype(at::kFloat));
    const std::vector<at::Tensor> numbers(tensors.values.size(), number);
    const libtorch::FusedAdam call{
        .values = tensors.values,
        .gradients = tensors.gradients,
        .exp_avgs = tensors.exp_avgs,
        .exp_avg_sqs = tensors.exp_avg_sqs,
        .max_exp_avg_sqs = tensors.max_exp_avg_sqs,
        .steps = numbers,
        .lr = step.lr,
        .beta1 = constants.beta1,
        .beta2 = constants.beta2,
        .weight_decay = step.weight_decay,
        .eps = constants.eps,
        .gradient_scale = gradient_scale(constants.gradient_factor, tensors.values.front())};
    if (step.decays_directly ? libtorch::fused_adamw(call) : libtorch::fused_adam(call)) return;
  }
  for (std::size_t i = 0; i < tensors.values.size(); ++i) update_one(tensors, i, constants);
}

void update_sgd_on_device(const SgdTensors& tensors, const SgdConstants& constants,
                          Kernels kernels) {
  if (kernels == Kernels::fused &&
      libtorch::fused_sgd(
          tensors.values, tensors.gradients, tensors.momentum_buffers,
          {.lr = constants.lr,
           .weight_decay = constants.l2,
           .momentum = tensors.momentum_buffers.empty() ? 0 : constants.momentum,
           .dampening = 1 - constants.gradient_share,
           .nesterov = constants.nesterov,
           .gradient_scale = gradient_scale(constants.gradient_factor, tensors.values.front())})) {
    return;
  }
  for (std::size_t i = 0; i < tensors.values.size(); ++i) update_one(tensors, i, constants);
}

}  // namespace lockstep::optim
