// SPDX-License-Identifier: BSD-3-Clause
// One step of a Trainer: what it does to gradients, parameters and rates, in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/trainer_options.h"
#include "lockstep/train/trainer_rates.h"

namespace lockstep {

// Forward, backward, clipping, optimizer, rates.
class TrainerStep {
 public:
  // Keeps a reference to the options. `trainer`: the context of the trainer's errors.
  TrainerStep(const TrainerOptions& options, ErrorContext trainer);
  TrainerStep(const TrainerStep&) = delete;
  TrainerStep& operator=(const TrainerStep&) = delete;

  // Call it once. `model` is null unless distributed. UsageError for a second call, and if the
  // device of the parameters cannot compute with .amp.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  // Each step updates the average, which must outlive this object.
  void average_with(WeightAverage& average) { average_ = &average; }
  // The context of the trainer's errors, if its rank has changed.
  void set_context(ErrorContext trainer) { trainer_ = std::move(trainer); }
  // Replaces the wrapper; null drops it.
  void set_model(std::shared_ptr<DistributedDataParallelBase> model) { model_ = std::move(model); }
  // Call both after use(). optimizer() throws UsageError before it.
  torch::nn::Module& module() const { return *module_; }
  torch::optim::Optimizer& optimizer() const;
  // Puts another optimizer in the place of the present one, which it returns: of the same
  // parameters, with the same rates.
  std::unique_ptr<torch::optim::Optimizer> exchange_optimizer(
      std::unique_ptr<torch::optim::Optimizer> other);
  // The rate of the first parameter group.
  double learning_rate() const;
  GradScaler& scaler() { return scaler_; }
  // Returns everything that a step changes, and the numbers that determine its learning rates.
  CheckpointContents contents();
  // The average that evaluations are of; null if they are of the module's own weights.
  WeightAverage* average_to_evaluate() const;
  // Returns copies of the weights that evaluations are of, with the module's buffers, by the names
  // of its state_dict().
  std::vector<NamedTensor> weights() const;
  TrainerRates& rates() { return rates_; }

  // Returns a 1 for each parameter that is trained and a 0 for each frozen one, in the order of
  // distinct_named_parameters().
  std::string trained_parameters() const;
  // Call it before an epoch with what trained_parameters() returns. Returns whether the parameters
  // differ from those when use() or this function was called; frozen ones then lose their
  // gradients.
  bool starts_training(const std::string& parameters);
  // Returns a line about the trained parameters that no step of the first epoch has given a
  // gradient, if there are any, and stops watching them.
  std::optional<std::string> unused_parameters_text();

  // Discards a step that ended with an error.
  void abandon();
  // Returns the loss of one batch, detached. With `synchronize`, the gradients, whole or divided,
  // are means over the ranks when it returns.
  at::Tensor backward(const std::function<at::Tensor()>& loss, bool synchronize);
  // Updates the parameters, sets the rates of the next step, and increments `steps`. Returns false
  // if the step was skipped. In an elastic job, only a sharded optimizer waits for other ranks in
  // here.
  bool update(std::int64_t& steps);
  // What update() does once the optimizer has updated the parameters, or skipped the step.
  void finish_update(bool stepped, std::int64_t& steps);
  // Call it after update(), when the step is counted. Collective if this is a step of which
  // .check_in_sync compares the ranks: OutOfSync if they differ. Clears the gradients.
  void compare_ranks(std::int64_t steps);

 private:
  void clip_gradients();
  void note_gradients();
  std::vector<NamedTensor> averages() const;

  const TrainerOptions& options_;
  ErrorContext trainer_;
  GradScaler scaler_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<DistributedDataParallelBase> model_;  // null unless distributed
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  WeightAverage* average_ = nullptr;
  at::Device device_ = at::kCPU;  // holds the parameters
  std::string trained_;
  std::vector<NamedTensor> without_gradient_;
  TrainerRates rates_;
};

}  // namespace lockstep
