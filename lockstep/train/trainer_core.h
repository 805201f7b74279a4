// SPDX-License-Identifier: BSD-3-Clause
// Public. What a Trainer (trainer.h) consists of: its model, and the loop of epochs and steps,
// which does not depend on the module's type.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

template <class M>
class Trainer;
class TrainerEpoch;
struct TrainerProgress;
class TrainerSaves;
class TrainerStep;

namespace detail {

struct TrainerBatch {
  std::int64_t samples;  // -1 if unknown
  bool is_last;          // true if this is known to be the epoch's last batch
  std::function<at::Tensor()> loss;
};

using TrainOn = std::function<void(const TrainerBatch&)>;
// Calls the function with each batch of an epoch.
using RunBatches = std::function<void(const TrainOn&)>;

// Returns the number of samples in a batch; -1 if its type does not tell.
template <class Batch>
std::int64_t samples_in(const Batch& batch) {
  if constexpr (requires { batch.data.size(0); }) {
    return batch.data.size(0);
  } else if constexpr (requires { batch.size(0); }) {
    return batch.size(0);
  } else if constexpr (requires { batch.size(); }) {
    return static_cast<std::int64_t>(batch.size());
  }
  return -1;
}

// Calls body(batch, is_last) for each batch. `is_last` is true only for the epoch's last batch, and
// only if the last step has fewer than batches_per_step batches. A batch that completes a full step
// is used before the next one is drawn: the checkpoint after the step must hold the random numbers
// for drawing the next batch.
template <class Batches, class Body>
void for_each_batch(Batches& batches, std::int64_t batches_per_step, const Body& body) {
  auto next = batches.begin();
  const auto end = batches.end();
  for (std::int64_t number = 1; next != end; ++number) {
    if (number % batches_per_step != 0) {
      auto batch = *next;  // an advanced iterator may reuse its batch
      ++next;
      body(batch, !(next != end));
    } else {
      auto&& batch = *next;
      body(batch, false);
      ++next;
    }
  }
}

// Collective. Converts the net's batch normalization, and gives it a group of its own. Makes that
// group only if the net has such layers.
void sync_batchnorm(torch::nn::Module& net, ProcessGroup& group);

}  // namespace detail

// A Trainer's model, in any mode. Call it as the module is called.
template <class M>
class TrainerModel {
 public:
  using Handle = typename WrappedModule<M>::Handle;

  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    if (distributed_) return distributed_(std::forward<Arguments>(arguments)...);
    if (data_parallel_) return data_parallel_(std::forward<Arguments>(arguments)...);
    return module_->forward(std::forward<Arguments>(arguments)...);
  }

  // The wrappers, each null in the other modes: for communication hooks, for example.
  const DistributedDataParallel<M>& distributed() const { return distributed_; }
  const DataParallel<M>& data_parallel() const { return data_parallel_; }

 private:
  friend class Trainer<M>;

  TrainerModel(Handle module, const GroupArgument& group, const TrainerOptions& options)
      : module_(std::move(module)) {
    if (options.mode == TrainingMode::distributed) {
      if (options.sync_batchnorm) detail::sync_batchnorm(*pointer_of(module_), group.get());
      distributed_ = DistributedDataParallel<M>(module_, group, options.distributed);
    } else if (options.mode == TrainingMode::data_parallel) {
      data_parallel_ = DataParallel<M>(module_, options.data_parallel);
    }
  }

  // Null unless distributed.
  std::shared_ptr<DistributedDataParallelBase> base() const {
    return distributed_ ? distributed_.ptr() : nullptr;
  }

  void train() {
    module_->train();
    if (distributed_) distributed_.ptr()->train();
    if (data_parallel_) data_parallel_.ptr()->train();
  }

  // Makes an optimizer of all parameters.
  template <class Optimizer, class Options>
  std::unique_ptr<Optimizer> make_optimizer(const Options& options, bool sharded) const {
    if constexpr (std::is_constructible_v<Optimizer, DistributedDataParallelBase&, Options>) {
      if (sharded && distributed_) return std::make_unique<Optimizer>(*base(), options);
    } else if (sharded) {
      throw UsageError(
          "[Trainer] .shard_optimizer needs an optimizer of lockstep::optim, such as "
          "optimize_with<lockstep::optim::Adam>");
    }
    return std::make_unique<Optimizer>(distinct_parameters(*module_), options);
  }

  Handle module_;
  DistributedDataParallel<M> distributed_;
  DataParallel<M> data_parallel_;
};

// The part of a Trainer that does not depend on the module's type: the order of epochs, steps,
// callbacks, checkpoints and lines.
class TrainerCore {
 public:
  TrainerCore(const TrainerCore&) = delete;
  TrainerCore& operator=(const TrainerCore&) = delete;
  virtual ~TrainerCore();

  ProcessGroup& group() const { return *group_; }
  // UsageError before optimize_with().
  torch::optim::Optimizer& optimizer() const;
  GradScaler& scaler();

 protected:
  TrainerCore(std::shared_ptr<ProcessGroup> group, TrainerOptions options);
  // The checked options: `automatic` is replaced by the mode that it selects.
  const TrainerOptions& options() const { return options_; }
  // `model` is null unless distributed.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  // Trainer::fit(). Calls `run_batches` once per epoch.
  std::vector<EpochSummary> run_epochs(const detail::RunBatches& run_batches,
                                       const FitOptions& fit);

 private:
  bool open_checkpoints(EpochSampler* sampler);
  void begin_epoch(bool resumed, const FitOptions& fit);
  EpochSummary run_epoch(const detail::RunBatches& run_batches, const FitOptions& fit,
                         bool resumed);
  void train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch, const FitOptions& fit);
  void finish_step(const at::Tensor& loss, bool is_last, TrainerEpoch& epoch,
                   const FitOptions& fit);
  void require_size(const detail::TrainerBatch& batch, const EpochSampler* sampler) const;
  double evaluated(const FitOptions& fit);
  void note_evaluation(const std::optional<double>& evaluation);
  bool has_no_patience_left() const;
  void save(const std::optional<double>& score, const EpochSampler* sampler);

  std::shared_ptr<ProcessGroup> group_;
  TrainerOptions options_;
  std::unique_ptr<TrainerStep> step_;
  std::unique_ptr<TrainerProgress> progress_;
  std::unique_ptr<TrainerSaves> saves_;  // made by the first fit(), if there are checkpoints
  std::optional<Progress> lines_;
};

}  // namespace lockstep
