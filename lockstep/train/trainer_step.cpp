// SPDX-License-Identifier: BSD-3-Clause
// Runs a step in the modes of a Trainer, in its precision.
#include "lockstep/train/trainer_step.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/utils/clip_grad.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep {

TrainerStep::TrainerStep(const TrainerOptions& options, ErrorContext trainer)
    : options_(options),
      trainer_(std::move(trainer)),
      scaler_({.enabled = options.amp == at::kHalf}),
      rates_(options) {}

void TrainerStep::use(std::shared_ptr<torch::nn::Module> module,
                      std::shared_ptr<DistributedDataParallelBase> model,
                      std::unique_ptr<torch::optim::Optimizer> optimizer) {
  if (optimizer_) {
    throw UsageError(trainer_, "optimize_with() was called before", "a trainer has one optimizer");
  }
  if (optimizer) optim::remove_repeats("Trainer", *optimizer);
  const std::vector<at::Tensor> parameters =
      optimizer ? optim::parameters_of(*optimizer) : std::vector<at::Tensor>();
  if (parameters.empty()) {
    throw UsageError(trainer_, "the optimizer has no parameters",
                     "give optimize_with() one that has");
  }
  device_ = parameters.front().device();
  try {
    if (options_.amp) const Autocast is_possible(device_, options_.amp);
    rates_.use(*optimizer);
  } catch (const UsageError&) {
    rethrow_within(trainer_);
  }
  module_ = std::move(module);
  model_ = std::move(model);
  optimizer_ = std::move(optimizer);
  trained_ = trained_parameters();
  without_gradient_ = distinct_named_parameters(*module_);
}

torch::optim::Optimizer& TrainerStep::optimizer() const {
  if (optimizer_) return *optimizer_;
  throw UsageError(trainer_, "there is no optimizer yet", "call optimize_with() first");
}

std::unique_ptr<torch::optim::Optimizer> TrainerStep::exchange_optimizer(
    std::unique_ptr<torch::optim::Optimizer> other) {
  rates_.set_optimizer(*other);
  scaler_.abandon_step();
  return std::exchange(optimizer_, std::move(other));
}

double TrainerStep::learning_rate() const {
  return optimizer().param_groups().front().options().get_lr();
}

CheckpointContents TrainerStep::contents() {
  return {.module = module_,
          .optimizer = optimizer_.get(),
          .scaler = scaler_.is_enabled() ? &scaler_ : nullptr,
          .scheduler = &rates_.numbers(),
          .tensors = averages()};
}

// Before its first update, an average has no weights.
WeightAverage* TrainerStep::average_to_evaluate() const {
  const bool evaluates = options_.evaluate_ema && average_ != nullptr && average_->updates() > 0;
  return evaluates ? average_ : nullptr;
}

// Returns the averages of the parameters, and their number. Those of buffers are left out: they are
// copies of this rank's own, which may differ between ranks.
std::vector<NamedTensor> TrainerStep::averages() const {
  std::vector<NamedTensor> found;
  if (average_ == nullptr) return found;
  std::set<std::string> names{"n_averaged"};
  for (const auto& parameter : module_->named_parameters()) {
    names.insert("module." + parameter.key());
  }
  for (auto& [name, tensor] : average_->state_dict()) {
    if (names.contains(name)) found.push_back({"ema." + name, tensor});
  }
  return found;
}

std::vector<NamedTensor> TrainerStep::weights() const {
  std::map<std::string, at::Tensor> averaged;
  if (average_to_evaluate() != nullptr) {
    for (auto& [name, tensor] : averages()) averaged.emplace(name, tensor);
  }
  std::vector<NamedTensor> weights = state_dict(*module_);
  for (auto& [name, tensor] : weights) {
    const auto found = averaged.find("ema.module." + name);
    tensor = found == averaged.end()
                 ? tensor.clone()
                 : found->second.to(tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  return weights;
}

std::string TrainerStep::trained_parameters() const {
  std::string trained;
  for (const auto& [name, tensor] : distinct_named_parameters(*module_)) {
    trained += tensor.requires_grad() ? '1' : '0';
  }
  return trained;
}

bool TrainerStep::starts_training(const std::string& parameters) {
  if (std::exchange(trained_, parameters) == parameters) return false;
  // An optimizer would still apply momentum and weight decay to a gradient that is zero.
  for (const at::Tensor& parameter : distinct_parameters(*module_)) {
    if (!parameter.requires_grad()) parameter.mutable_grad().reset();
  }
  return true;
}

std::optional<std::string> TrainerStep::unused_parameters_text() {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : std::exchange(without_gradient_, {})) {
    if (tensor.requires_grad()) names.push_back(name);
  }
  if (names.empty()) return {};
  const std::size_t count = names.size();
  names.resize(std::min(count, kMost));
  return fmt::format(
      "{} parameter{} never got a gradient in the first epoch: {}{}; use {} in the loss, or freeze "
      "{} with requires_grad_(false)",
      count, count == 1 ? "" : "s", fmt::join(names, ", "), count > kMost ? ", ..." : "",
      count == 1 ? "it" : "them", count == 1 ? "it" : "them");
}

// A wrapper of several ranks gives parameters gradients that only other ranks used.
void TrainerStep::note_gradients() {
  if (without_gradient_.empty()) return;
  if (model_ && model_->group()->size() > 1 && options_.microbatches == 0) {
    const std::vector<std::string> unused = model_->unused_parameters();
    std::erase_if(without_gradient_, [&](const NamedTensor& parameter) {
      return parameter.tensor.requires_grad() &&
             std::ranges::find(unused, parameter.name) == unused.end();
    });
  } else {
    std::erase_if(without_gradient_,
                  [](const NamedTensor& parameter) { return parameter.tensor.grad().defined(); });
  }
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
  note_gradients();
  if (options_.max_grad_norm) clip_gradients();
  const bool stepped = scaler_.step(*optimizer_);
  scaler_.update();
  finish_update(stepped, steps);
  return stepped;
}

void TrainerStep::finish_update(bool stepped, std::int64_t& steps) {
  if (stepped && average_ != nullptr) average_->update();
  ++steps;
  try {
    rates_.step();
  } catch (const UsageError&) {  // a schedule does not know the rank
    rethrow_within(trainer_);
  }
}

void TrainerStep::compare_ranks(std::int64_t steps) {
  if (options_.check_in_sync > 0 && steps % options_.check_in_sync == 0) {
    check_in_sync(*model_, {.gradients = true});
  }
  optimizer_->zero_grad();
}

void TrainerStep::clip_gradients() {
  scaler_.unscale_(*optimizer_);
  // A norm that ranks compute together would depend on their number.
  if (model_ && options_.microbatches == 0) {
    clip_grad_norm_(*model_, *options_.max_grad_norm);
  } else {
    torch::nn::utils::clip_grad_norm_(distinct_parameters(*module_), *options_.max_grad_norm);
  }
}

}  // namespace lockstep
