// SPDX-License-Identifier: BSD-3-Clause
// Public. Scales the loss, so that small gradients do not vanish in float16, and skips steps whose
// gradients overflowed. Python's torch.amp.GradScaler for C++, with the same constants:
//
//   lockstep::GradScaler scaler;
//   ...
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);
//   scaler.update();
//
// To clip gradients, call scaler.unscale_(optimizer) first.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

struct GradScalerOptions {
  double init_scale = 65536;
  // Multiplies the scale after growth_interval steps in a row whose gradients were finite.
  double growth_factor = 2;
  // Multiplies the scale after a step whose gradients were not finite.
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;
  // If false, all calls behave as in a program without scaling.
  bool enabled = true;
};

// What a checkpoint keeps: the entries of Python's state_dict.
struct GradScalerState {
  double scale;
  double growth_factor;
  double backoff_factor;
  std::int64_t growth_interval;
  std::int64_t growth_tracker;
};

// Use one scaler per training run, even with several losses and optimizers: call step() for each
// optimizer, then update() once. If each rank has a scaler with the same options, all ranks and
// replicas of a job skip the same steps and keep the same scale: an overflow on one makes the
// reduced gradients of all infinite or NaN. If gradients are divided, the ranks exchange one byte
// each. With post_local_sgd_hook, each rank has its own gradients and skips on its own. Do not also
// set .check_finite: it throws on the overflows that a scaler expects. For one thread at a time.
//
// A parameter that a group of the optimizer lists twice, as parameters() lists tied weights, is
// removed from the group where it is repeated: it would be unscaled and stepped twice.
class GradScaler {
 public:
  // UsageError unless the scale is positive and finite, growth_factor above 1, backoff_factor
  // between 0 and 1, and growth_interval at least 1.
  explicit GradScaler(const GradScalerOptions& options = {});

  // Returns the loss times the scale. A float16 loss without dimensions becomes float, in which it
  // fits.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides the gradients of the optimizer's parameters by the scale, so that they can be looked at
  // or clipped before step(). Collective if they are divided among ranks. UsageError if that has
  // been done since the last update(), for gradients of type float16, if there are none, and if a
  // parameter is in two groups.
  void unscale_(torch::optim::Optimizer& optimizer);

  // Steps if all gradients are finite, and returns whether it did. Unscales them unless unscale_()
  // did; lockstep::optim's optimizers do it in the same pass, and the gradients may then stay
  // scaled. Collective if gradients are divided among ranks. UsageError if the optimizer has
  // stepped since the last update(), if no parameter has a gradient, or if one is in two groups.
  bool step(torch::optim::Optimizer& optimizer);

  // Forgets what has been unscaled or stepped since the last update(): for a program that continues
  // after an error in the middle of a step, with new gradients.
  void abandon_step() { stages_.clear(); }

  // Lowers the scale if a step was skipped since the last update(), and raises it after a long
  // run without one; or sets it. UsageError if no optimizer has stepped or been unscaled, or if the
  // new scale is not positive and finite.
  void update(std::optional<double> new_scale = {});

  // 1 if scaling is not enabled.
  double get_scale() const;
  bool is_enabled() const { return options_.enabled; }

  GradScalerState state() const;
  // UsageError for a state that the options could not have.
  void load_state(const GradScalerState& state);

 private:
  struct Stage {
    bool finite;
    bool stepped;
  };

  double inverse_scale() const;

  GradScalerOptions options_;
  float scale_;  // as in PyTorch, so that both round alike
  std::int64_t growth_tracker_ = 0;
  // The optimizers that were unscaled or have stepped since the last update().
  std::unordered_map<const torch::optim::Optimizer*, Stage> stages_;
};

}  // namespace lockstep
