// SPDX-License-Identifier: BSD-3-Clause
// Public. What a Trainer (trainer.h) consists of: its model, and the loop of epochs and steps,
// which does not depend on the module's type.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

class ProgressBarCallback;
template <class M>
class Trainer;
class TrainerEpoch;
struct TrainerProgress;
class TrainerSaves;
class TrainerStep;
class WeightAverage;

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

// Whether a range-based for loop can run over it.
template <class Batches>
concept BatchRange = requires(Batches& batches) {
  batches.begin() != batches.end();
};

// What a range of batches says about an epoch of this rank. `batches` is its number of batches.
struct LoaderBatches {
  std::optional<std::int64_t> batches = {};
  std::optional<std::int64_t> batch_size = {};
  bool drop_last = false;  // whether the last batch is left out if it is smaller
};

template <class Batches>
LoaderBatches batches_in(Batches& batches) {
  LoaderBatches found;
  if constexpr (requires { batches.batches_per_epoch(); }) {  // DataLoader
    found.batches = static_cast<std::int64_t>(batches.batches_per_epoch());
  } else if constexpr (requires { batches.options().batch_size; }) {  // libtorch's, MemoryLoader
    found.batch_size = static_cast<std::int64_t>(batches.options().batch_size);
    if constexpr (requires { batches.options().drop_last; }) {
      found.drop_last = batches.options().drop_last;
    }
  } else if constexpr (requires { batches.size(); }) {
    found.batches = static_cast<std::int64_t>(batches.size());
  }
  return found;
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
    if (pointer_of(module_) == nullptr) {
      throw UsageError(group.get().context("Trainer"), "the module is empty", "make it first");
    }
    if (options.mode == TrainingMode::distributed) {
      if (options.sync_batchnorm) detail::sync_batchnorm(*pointer_of(module_), group.get());
      distributed_ = DistributedDataParallel<M>(module_, group, options.distributed);
    } else if (options.mode == TrainingMode::data_parallel) {
      data_parallel_ = DataParallel<M>(module_, options.data_parallel);
    }
  }

  // Drops the wrapper, and makes another one.
  void wrap_again(const GroupArgument& group, const TrainerOptions& options) {
    distributed_ = nullptr;
    distributed_ = DistributedDataParallel<M>(module_, group, options.distributed);
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
      throw UsageError({.component = "Trainer"},
                       ".shard_optimizer needs an optimizer of lockstep::optim",
                       "call optimize_with<lockstep::optim::Adam>, for example");
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
  // Collective, after fit(). Gives the module, and the tensors of .checkpoints, their values in the
  // best checkpoint (CheckpointFolder::load_best). With .evaluate_ema, the weights are the averaged
  // ones. Returns false if no checkpoint has an evaluation. UsageError without .checkpoints.
  bool load_best();

 protected:
  TrainerCore(std::shared_ptr<ProcessGroup> group, TrainerOptions options);
  // The checked options: `automatic` is replaced by the mode that it selects.
  const TrainerOptions& options() const { return options_; }
  // `model` is null unless distributed.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  // Each step updates the average, which must outlive this object.
  void average_with(WeightAverage& average);
  // Trainer::fit(). Calls `run_batches` once per epoch.
  std::vector<EpochSummary> run_epochs(const detail::RunBatches& run_batches,
                                       const detail::LoaderBatches& batches, const FitOptions& fit);

 private:
  // Wraps the module of a distributed model again.
  virtual std::shared_ptr<DistributedDataParallelBase> wrap_again() = 0;

  std::optional<std::int64_t> batches_of_epoch(const EpochSampler* sampler, bool left) const;
  std::optional<optim::LRSchedule> schedule(const EpochSampler* sampler, bool resumed) const;
  std::optional<std::int64_t> find_steps_of_run(const EpochSampler* sampler, bool resumed) const;
  void require_rates(const optim::LRSchedule& planned, const EpochSampler* sampler,
                     bool resumed) const;
  void begin_rates(const EpochSampler* sampler, bool resumed);
  bool open_checkpoints(EpochSampler* sampler);
  std::vector<EpochSummary> run(const detail::RunBatches& run_batches, const FitOptions& fit);
  void tell_callbacks(const std::exception& error) const;
  void begin_epoch(bool resumed, const FitOptions& fit);
  void renew_wrapper();
  EpochSummary run_epoch(const detail::RunBatches& run_batches, const FitOptions& fit,
                         bool resumed);
  void train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch, const FitOptions& fit);
  void finish_step(const at::Tensor& loss, const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                   const FitOptions& fit);
  void require_size(const detail::TrainerBatch& batch, const EpochSampler* sampler) const;
  Metrics evaluated(const FitOptions& fit);
  std::optional<double> watched(const Metrics& metrics) const;
  void note_evaluation(const std::optional<double>& evaluation);
  bool has_no_patience_left() const;
  void log_what_decides(const EpochSummary& first) const;
  void log_unused_parameters() const;
  void restore_best();
  void save(const std::optional<double>& score, const EpochSampler* sampler);

  std::shared_ptr<ProcessGroup> group_;
  TrainerOptions options_;
  std::unique_ptr<TrainerStep> step_;
  std::unique_ptr<TrainerProgress> progress_;
  std::unique_ptr<TrainerSaves> saves_;  // made by the first fit(), if there are checkpoints
  std::optional<Progress> lines_;        // of the present epoch
  detail::LoaderBatches batches_;        // of the present fit()
  // The weights at the best evaluation of the present fit(), with .restore_best but without
  // checkpoints.
  std::vector<NamedTensor> best_weights_;
  // The callbacks of the present fit(): the trainer's own and the program's.
  std::vector<std::shared_ptr<TrainerCallback>> callbacks_;
  std::shared_ptr<ProgressBarCallback> bar_;  // one of these; null if there is none
};

}  // namespace lockstep
