// SPDX-License-Identifier: BSD-3-Clause
// A step of a Trainer: forward, backward, clipping, rate, optimizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/scheduled_rates.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

class TrainerStep {
 public:
  // Keeps a reference to the options.
  explicit TrainerStep(const TrainerOptions& options);
  TrainerStep(const TrainerStep&) = delete;
  TrainerStep& operator=(const TrainerStep&) = delete;

  // Call it once. `model` is null unless distributed. UsageError for a second call, and if the
  // device of the parameters cannot compute with .amp.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  // Call both after use(). optimizer() throws UsageError before it.
  torch::nn::Module& module() const { return *module_; }
  torch::optim::Optimizer& optimizer() const;
  // The rate of the first parameter group.
  double learning_rate() const;
  GradScaler& scaler() { return scaler_; }
  // Returns everything that a step changes, and the numbers that determine its learning rates.
  CheckpointContents contents();
  ScheduledRates& rates() { return rates_; }

  // Discards a step that ended with an error.
  void abandon();
  // Returns the loss of one batch, detached. With `synchronize`, the gradients, whole or divided,
  // are means over the ranks when it returns.
  at::Tensor backward(const std::function<at::Tensor()>& loss, bool synchronize);
  // Updates the parameters at the rates for step number `steps`, and increments `steps`. Returns
  // false if the step was skipped.
  bool update(std::int64_t& steps);

 private:
  void clip_gradients();

  const TrainerOptions& options_;
  GradScaler scaler_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<DistributedDataParallelBase> model_;  // null unless distributed
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Device device_ = at::kCPU;  // holds the parameters
  ScheduledRates rates_;
};

}  // namespace lockstep
