// SPDX-License-Identifier: BSD-3-Clause
// Orders what one step does to gradients and parameters.
#include "lockstep/train/trainer_step.h"

#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/utils/clip_grad.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep {

TrainerStep::TrainerStep(const TrainerOptions& options)
    : options_(options), scaler_({.enabled = options.amp == at::kHalf}), rates_(options.schedule) {}

void TrainerStep::use(std::shared_ptr<torch::nn::Module> module,
                      std::shared_ptr<DistributedDataParallelBase> model,
                      std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer_) {
    throw UsageError("[Trainer] optimize_with() was called before. A trainer has one optimizer");
  }
  if (optimizer) optim::remove_repeats("[Trainer] optimize_with()", *optimizer);
  const std::vector<at::Tensor> parameters =
      optimizer ? optim::parameters_of(*optimizer) : std::vector<at::Tensor>();
  if (parameters.empty()) {
    throw UsageError("[Trainer] optimize_with() needs an optimizer that has parameters");
  }
  device_ = parameters.front().device();
  if (options_.amp) const Autocast is_possible(device_, options_.amp);
  module_ = std::move(module);
  model_ = std::move(model);
  optimizer_ = std::move(optimizer);
  rates_.use(*optimizer_);
}

torch::optim::Optimizer& TrainerStep::optimizer() const {
  if (optimizer_) return *optimizer_;
  throw UsageError("[Trainer] there is no optimizer yet. Call optimize_with() first");
}

double TrainerStep::learning_rate() const {
  return optimizer().param_groups().front().options().get_lr();
}

CheckpointContents TrainerStep::contents() {
  return {.module = module_,
          .optimizer = optimizer_.get(),
          .scaler = scaler_.is_enabled() ? &scaler_ : nullptr,
          .scheduler = &rates_.numbers()};
}

void TrainerStep::abandon() {
  optimizer().zero_grad();
  scaler_.abandon_step();
}

at::Tensor TrainerStep::backward(const std::function<at::Tensor()>& loss, bool synchronize) {
  std::optional<NoSync> no_sync;
  if (model_ && !synchronize) no_sync.emplace(model_->no_sync());
  at::Tensor value;
  {
    std::optional<Autocast> autocast;
    if (options_.amp) autocast.emplace(device_, options_.amp);
    const TracedSpan span("forward");
    value = loss();
  }
  const TracedSpan span("backward");
  const bool accumulates = options_.accumulation_steps > 1;
  scaler_.scale(accumulates ? value / options_.accumulation_steps : value).backward();
  if (options_.check_finite && !model_) check_finite_gradients(*module_);
  return value.detach();
}

bool TrainerStep::update(std::int64_t& steps) {
  const TracedSpan span("optimizer");
  rates_.set(steps);
  if (options_.max_grad_norm) clip_gradients();
  const bool stepped = scaler_.step(*optimizer_);
  scaler_.update();
  ++steps;
  if (options_.check_in_sync > 0 && steps % options_.check_in_sync == 0) {
    check_in_sync(*model_, {.gradients = true});
  }
  optimizer_->zero_grad();
  return stepped;
}

void TrainerStep::clip_gradients() {
  scaler_.unscale_(*optimizer_);
  if (model_) {
    clip_grad_norm_(*model_, *options_.max_grad_norm);
  } else {
    torch::nn::utils::clip_grad_norm_(distinct_parameters(*module_), *options_.max_grad_norm);
  }
}

}  // namespace lockstep
