// SPDX-License-Identifier: BSD-3-Clause
// One training step on the drawn batch, with either way of clearing gradients.
#include "tools/bench/training.h"

namespace lockstep::bench {

std::string_view name(CommHookKind kind) {
  switch (kind) {
    case CommHookKind::none:
      return "none";
    case CommHookKind::fp16:
      return "fp16";
    case CommHookKind::bf16:
      return "bf16";
    case CommHookKind::power_sgd:
      return "power_sgd";
  }
  return "unknown";
}

Training::Training(const TrainingStep& step, const Wrap& wrap)
    : step_(step), net_(step.model.make_net()) {
  net_->to(step_.device);
  if (wrap) {
    wrapped_ = wrap(net_);
  } else {
    wrapped_.forward = [net = net_](const at::Tensor& input) mutable {
      return net->forward(input);
    };
  }
  optimizer_ =
      step_.model.make_optimizer({net_->parameters(), wrapped_.model.get()}, step_.optimizer);
  input_ = step_.model.make_input(step_.samples()).to(step_.device);
  target_ = step_.model.make_target(step_.samples()).to(step_.device);
}

void Training::step() {
  clear_gradients();
  step_.model.loss(wrapped_.forward(input_), target_).backward();
  optimizer_->step();
  if (!step_.device.is_cpu()) wait_for_device();
}

// Reads a number that the last operation produces.
void Training::wait_for_device() const {
  optimizer_->param_groups().front().params().front().detach().view(-1)[0].item<float>();
}

// Like zero_grad(set_to_none) of libtorch 2, which 1.13 lacks.
void Training::clear_gradients() {
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (step_.set_to_none) {
        gradient.reset();
      } else {
        gradient.zero_();
      }
    }
  }
}

}  // namespace lockstep::bench
