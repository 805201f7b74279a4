// SPDX-License-Identifier: BSD-3-Clause
// The rules by which the scale changes, and the order of calls.
#include "lockstep/amp/grad_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/finite_gradients.h"

namespace lockstep {
namespace {

constexpr const char* kScaler = "GradScaler";

void check_scale(double scale) {
  // The scale is a float.
  if (scale > 0 && std::isfinite(static_cast<float>(scale)) && static_cast<float>(scale) > 0)
    return;
  throw UsageError({.component = kScaler},
                   fmt::format("the scale {} is not a positive finite float", scale),
                   "PyTorch begins with 65536");
}

void check_rules(const GradScalerOptions& options) {
  check_scale(options.init_scale);
  if (!(options.growth_factor > 1) || !std::isfinite(options.growth_factor)) {
    throw UsageError({.component = kScaler},
                     fmt::format("growth_factor is {}", options.growth_factor),
                     "it must be above 1, such as 2");
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    throw UsageError({.component = kScaler},
                     fmt::format("backoff_factor is {}", options.backoff_factor),
                     "it must be between 0 and 1, such as 0.5");
  }
  if (options.growth_interval < 1) {
    throw UsageError({.component = kScaler},
                     fmt::format("growth_interval is {}", options.growth_interval),
                     "it must be at least 1, such as 2000");
  }
}

// Returns the gradients, as their stored elements if they are sparse; leaves out empty ones.
std::vector<at::Tensor> gradients_to_scale(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      gradients.push_back(gradient.is_sparse() ? gradient._values() : gradient);
    }
  }
  if (gradients.empty()) {
    throw UsageError({.component = kScaler}, "no parameter of the optimizer has a gradient",
                     "call scaler.scale(loss).backward() before");
  }
  std::erase_if(gradients, [](const at::Tensor& gradient) { return gradient.numel() == 0; });
  return gradients;
}

void refuse_half(const std::vector<at::Tensor>& gradients) {
  for (const at::Tensor& gradient : gradients) {
    if (gradient.scalar_type() != at::kHalf) continue;
    throw UsageError({.component = kScaler},
                     "gradients of type float16 cannot be unscaled without losing small ones",
                     "keep the parameters in float, and convert within Autocast");
  }
}

optim::UnscalingOptimizer* unscaling(torch::optim::Optimizer& optimizer) {
  return dynamic_cast<optim::UnscalingOptimizer*>(&optimizer);
}

bool are_finite(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& gradients) {
  auto* const unscales = unscaling(optimizer);
  return unscales != nullptr ? unscales->gradients_are_finite() : all_finite(gradients);
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(static_cast<float>(options.init_scale)) {
  check_rules(options);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss * at::full({}, scale_, loss.options().dtype(at::kFloat).requires_grad(false));
}

// Rounds as PyTorch does.
double GradScaler::inverse_scale() const {
  return static_cast<float>(1 / static_cast<double>(scale_));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (const auto known = stages_.find(&optimizer); known != stages_.end()) {
    throw UsageError({.component = kScaler},
                     fmt::format("unscale_() was called after {} of the same optimizer",
                                 known->second.stepped ? "step()" : "unscale_()"),
                     "call update() in between");
  }
  const at::NoGradGuard no_grad;
  optim::remove_repeats(kScaler, optimizer);
  refuse_half(gradients_to_scale(optimizer));
  const bool finite = are_finite(optimizer, gradients_to_scale(optimizer));
  // That may have reduced gradients, and made views of buckets of those that had been replaced.
  const std::vector<at::Tensor> gradients = gradients_to_scale(optimizer);
  if (!gradients.empty()) at::_foreach_mul_(gradients, inverse_scale());
  stages_[&optimizer] = {.finite = finite, .stepped = false};
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  optim::remove_repeats(kScaler, optimizer);
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  const auto known = stages_.find(&optimizer);
  if (known != stages_.end() && known->second.stepped) {
    throw UsageError({.component = kScaler}, "step() was called twice for one optimizer",
                     "call update() after each step");
  }
  auto* const unscales = unscaling(optimizer);
  if (unscales != nullptr && known == stages_.end()) {
    const bool finite = are_finite(optimizer, gradients_to_scale(optimizer));
    if (finite) unscales->step_unscaling(inverse_scale());
    // Not before: after an error the gradients are still scaled.
    stages_[&optimizer] = {.finite = finite, .stepped = true};
    return finite;
  }
  if (known == stages_.end()) unscale_(optimizer);
  Stage& stage = stages_.at(&optimizer);
  if (stage.finite) optimizer.step();
  stage.stepped = true;
  return stage.finite;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (new_scale) check_scale(*new_scale);
  if (!options_.enabled) return;
  if (new_scale) {
    scale_ = static_cast<float>(*new_scale);
    stages_.clear();
    return;
  }
  if (stages_.empty()) {
    throw UsageError({.component = kScaler}, "update() needs a step() or an unscale_() before it");
  }
  const bool finite =
      std::ranges::all_of(stages_, [](const auto& entry) { return entry.second.finite; });
  stages_.clear();
  if (!finite) {
    // The inverse of a smaller scale is infinite: no later step could be taken.
    scale_ = std::max(static_cast<float>(scale_ * options_.backoff_factor),
                      std::numeric_limits<float>::min());
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    const auto grown = static_cast<float>(scale_ * options_.growth_factor);
    if (std::isfinite(grown)) scale_ = grown;
    growth_tracker_ = 0;
  }
}

double GradScaler::get_scale() const {
  return options_.enabled ? scale_ : 1;
}

GradScalerState GradScaler::state() const {
  return {.scale = scale_,
          .growth_factor = options_.growth_factor,
          .backoff_factor = options_.backoff_factor,
          .growth_interval = options_.growth_interval,
          .growth_tracker = growth_tracker_};
}

void GradScaler::load_state(const GradScalerState& state) {
  const GradScalerOptions loaded{.init_scale = state.scale,
                                 .growth_factor = state.growth_factor,
                                 .backoff_factor = state.backoff_factor,
                                 .growth_interval = state.growth_interval,
                                 .enabled = options_.enabled};
  check_rules(loaded);
  if (state.growth_tracker < 0 || state.growth_tracker >= state.growth_interval) {
    throw UsageError(
        {.component = kScaler},
        fmt::format("growth_tracker is {}, but it counts from 0 to below growth_interval, {}",
                    state.growth_tracker, state.growth_interval));
  }
  options_ = loaded;
  scale_ = static_cast<float>(state.scale);
  growth_tracker_ = state.growth_tracker;
  stages_.clear();
}

}  // namespace lockstep
