// SPDX-License-Identifier: BSD-3-Clause
// The flat tensor in which the gradients of microbatches are summed, and the numbers that travel
// with them.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/train/load_balance.h"

namespace lockstep {

// Where the gradients of the trained parameters lie in a flat tensor. Behind them are, for each
// parameter, the number of microbatches that gave it a gradient, then the sum of the losses, the
// number of ranks that ask to leave, and with .balance_load the load of each rank.
class GradientLayout {
 public:
  // Has no parameters yet.
  GradientLayout() = default;
  // For the parameters of the module that require a gradient, and the loads of `measured_ranks`
  // ranks. UsageError in the caller's context if they differ in type or device, or if there are
  // none.
  GradientLayout(const torch::nn::Module& module, int measured_ranks, const ErrorContext& caller);

  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  at::TensorOptions options() const { return parameters_.front().options(); }
  at::Device device() const { return parameters_.front().device(); }
  std::int64_t elements() const { return leaving() + 1 + measured_ranks_ * kNumbersOfLoad; }
  // UsageError in the caller's context unless the module still trains the same parameters.
  void require_same_parameters(const torch::nn::Module& module, const ErrorContext& caller) const;

  // Writes the gradients of one microbatch to the flat tensor, or adds them if `adds`, and takes
  // them away. `parameters`: those of the layout, or their counterparts in a replica. `loss`: the
  // weighted loss, undefined if the microbatch is empty. UsageError in the caller's context for a
  // sparse gradient.
  void take_gradients(const std::vector<at::Tensor>& parameters, const at::Tensor& loss,
                      const at::Tensor& to, bool adds, const ErrorContext& caller) const;
  // Each `.grad` becomes its part of the sum; it stays as it is if no microbatch gave one.
  // `numbers`: what numbers_in() returns.
  void set_gradients(const at::Tensor& sum, const at::Tensor& numbers) const;

  // Which gradients in the flat tensor have infinite or NaN elements, by parameter.
  NotFinite not_finite_in(const at::Tensor& flat) const;

  // The sum of the losses: a scalar in the memory of the flat tensor.
  at::Tensor loss_in(const at::Tensor& flat) const { return flat.select(0, loss()); }
  // This rank's partial sum has neither a request to leave nor a load.
  void clear_messages(const at::Tensor& flat) const;
  // Asks all ranks to leave.
  void ask_to_leave(const at::Tensor& flat) const { flat.select(0, leaving()).fill_(1); }
  void set_load(const at::Tensor& flat, int rank, const RankLoad& load) const;

  // Copies what lies behind the gradients to the CPU.
  at::Tensor numbers_in(const at::Tensor& sum) const;
  bool all_leave(const at::Tensor& numbers) const;
  // The load of each measured rank, multiplied by `scale`. Empty if none is measured.
  std::vector<RankLoad> loads(const at::Tensor& numbers, double scale) const;

 private:
  static constexpr std::int64_t kNumbersOfLoad = 3;

  std::int64_t loss() const { return first_count_ + static_cast<std::int64_t>(parameters_.size()); }
  std::int64_t leaving() const { return loss() + 1; }
  std::int64_t load_of(int rank) const { return leaving() + 1 + rank * kNumbersOfLoad; }

  std::vector<at::Tensor> parameters_;
  std::vector<std::int64_t> offsets_;
  std::int64_t first_count_ = 0;
  int measured_ranks_ = 0;
};

}  // namespace lockstep
