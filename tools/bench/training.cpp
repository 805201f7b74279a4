// SPDX-License-Identifier: BSD-3-Clause
// One training step on the drawn batch, with either way of clearing gradients.
#include "tools/bench/training.h"

#include <optional>

#include "lockstep/amp/autocast.h"
#include "lockstep/parallel/distinct_parameters.h"

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

std::string_view name(AmpKind kind) {
  switch (kind) {
    case AmpKind::none:
      return "none";
    case AmpKind::bf16:
      return "bf16";
    case AmpKind::fp16:
      return "fp16";
  }
  return "unknown";
}

Training::Training(const TrainingStep& step, const Wrap& wrap)
    : step_(step), net_(step.model.make_net()), scaler_({.enabled = step.amp == AmpKind::fp16}) {
  net_->to(step_.device);
  if (wrap) {
    wrapped_ = wrap(net_);
  } else {
    wrapped_.forward = [net = net_](const at::Tensor& input) mutable {
      return net->forward(input);
    };
  }
  optimizer_ = step_.model.make_optimizer({distinct_parameters(*net_), wrapped_.model.get()},
                                          step_.optimizer);
  input_ = step_.model.make_input(step_.samples()).to(step_.device);
  target_ = step_.model.make_target(step_.samples()).to(step_.device);
}

void Training::step() {
  clear_gradients();
  scaler_.scale(loss()).backward();
  scaler_.step(*optimizer_);
  scaler_.update();
  if (!step_.device.is_cpu()) wait_for_device();
}

at::Tensor Training::loss() {
  std::optional<Autocast> autocast;
  if (step_.amp != AmpKind::none) {
    autocast.emplace(step_.device, step_.amp == AmpKind::bf16 ? at::kBFloat16 : at::kHalf);
  }
  return step_.model.loss(wrapped_.forward(input_), target_);
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
