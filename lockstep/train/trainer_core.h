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
#include "lockstep/checkpoint/checkpoint_contents.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/microbatch.h"
#include "lockstep/tensor/named_tensor.h"
#include "lockstep/train/loader_batches.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

class ElasticTraining;
class MicrobatchStep;
struct MicrobatchPlan;
class OptimizerShards;
struct RunLength;
template <class M>
class Trainer;
class TrainerCallbacks;
class TrainerEpoch;
class TrainerEvaluation;
struct TrainerProgress;
class TrainerSaves;
class TrainerState;
class TrainerStep;
class WeightAverage;

namespace detail {

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
    if (const Microbatch* const microbatch = MicrobatchScope::current();
        microbatch != nullptr && microbatch->trained == pointer_of(module_).get()) {
      using Impl = std::remove_reference_t<decltype(*module_)>;
      return dynamic_cast<Impl&>(*microbatch->module)
          .forward(std::forward<Arguments>(arguments)...);
    }
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
    if (TorchScript<M> && options.microbatches > 0) {
      throw UsageError(group.get().context("Trainer"),
                       "the gradients of a TorchScript module change between its first calls, "
                       "while it is profiled, so it has no fixed bits",
                       "leave out .microbatches");
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
  // Null unless data_parallel.
  std::shared_ptr<DataParallelBase> replicas() const {
    return data_parallel_ ? data_parallel_.ptr() : nullptr;
  }

  void train() {
    module_->train();
    if (distributed_) distributed_.ptr()->train();
    if (data_parallel_) data_parallel_.ptr()->train();
  }

  // Makes an optimizer of all parameters. A sharded one owns shares of the model's buckets, which
  // microbatches do not fill: then it owns shares of the parameters.
  template <class Optimizer, class Options>
  std::unique_ptr<Optimizer> make_optimizer(const Options& options,
                                            const TrainerOptions& trainer) const {
    if constexpr (std::is_constructible_v<Optimizer, DistributedDataParallelBase&, Options>) {
      const bool sharded = trainer.shard_optimizer && distributed_;
      if constexpr (std::is_constructible_v<Optimizer, std::vector<at::Tensor>, Options,
                                            GroupArgument>) {
        if (sharded && trainer.microbatches > 0) {
          return std::make_unique<Optimizer>(distinct_parameters(*module_), options,
                                             GroupArgument(base()->group()));
        }
      }
      if (sharded) return std::make_unique<Optimizer>(*base(), options);
    } else if (trainer.shard_optimizer) {
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

  // The group that trains. In an elastic job (docs/elastic.md) another one takes its place when
  // ranks are lost or join: within fit(), after which it stays. So ask for it anew in each
  // callback, and after fit(); a group that was made before fit() may be unusable then.
  ProcessGroup& group() const { return *group_; }
  // UsageError before optimize_with(). If it is sharded, another one takes its place with the
  // group.
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
  // `model` is null unless distributed, `replicas` unless data_parallel, `make_optimizer` if the
  // program has made the optimizer.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::shared_ptr<DataParallelBase> replicas,
           std::unique_ptr<torch::optim::Optimizer> optimizer,
           std::function<std::unique_ptr<torch::optim::Optimizer>()> make_optimizer);
  // Each step updates the average, which must outlive this object.
  void average_with(WeightAverage& average);
  // Trainer::fit(). Calls `run_batches` once per epoch.
  std::vector<EpochSummary> run_epochs(const detail::RunBatches& run_batches,
                                       const detail::LoaderBatches& batches, const FitOptions& fit);

 private:
  // Wraps the module of a distributed model again.
  virtual std::shared_ptr<DistributedDataParallelBase> wrap_again() = 0;

  RunLength length(const FitOptions& fit) const;
  bool begin_run(const FitOptions& fit);
  void begin_elastic(const FitOptions& fit, bool resumed);
  void adopt(std::shared_ptr<ProcessGroup> group, const FitOptions& fit);
  [[noreturn]] void leave_generation();
  bool open_checkpoints(EpochSampler* sampler);
  std::vector<EpochSummary> run(const detail::RunBatches& run_batches, const FitOptions& fit);
  void train_epochs(const detail::RunBatches& run_batches, const FitOptions& fit, bool& resumed,
                    std::vector<EpochSummary>& summaries);
  void begin_epoch(bool resumed, const FitOptions& fit);
  void renew_wrapper();
  std::shared_ptr<DistributedDataParallelBase> wrap_model();
  EpochSummary run_epoch(const detail::RunBatches& run_batches, const FitOptions& fit,
                         bool resumed);
  void finish_epoch(const EpochSummary& summary);
  void train_on(const detail::TrainerBatch& batch, TrainerEpoch& epoch, const FitOptions& fit);
  void deal_microbatches(EpochSampler* sampler);
  void begin_microbatches(TrainerEpoch& epoch, const FitOptions& fit);
  bool train_on_microbatch(const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                           const FitOptions& fit);
  bool finish_microbatches(TrainerEpoch& epoch, const FitOptions& fit);
  bool change_shares(const TrainerEpoch& epoch, const FitOptions& fit);
  void finish_step(const at::Tensor& loss, const detail::TrainerBatch& batch, TrainerEpoch& epoch,
                   const FitOptions& fit);
  void require_size(const detail::TrainerBatch& batch, const EpochSampler* sampler) const;
  void restore_best();
  void save(const std::optional<double>& score, const EpochSampler* sampler);

  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<ElasticTraining> elastic_;  // null unless the job is elastic
  TrainerOptions options_;
  std::unique_ptr<TrainerStep> step_;
  std::unique_ptr<OptimizerShards> shards_;
  std::unique_ptr<MicrobatchStep> microbatches_;  // null without .microbatches
  std::unique_ptr<MicrobatchPlan> plan_;          // of the present fit(), with .microbatches
  std::unique_ptr<TrainerProgress> progress_;
  std::unique_ptr<TrainerState> state_;
  std::unique_ptr<TrainerEvaluation> evaluation_;
  std::unique_ptr<TrainerSaves> saves_;  // made by the first fit(), if there are checkpoints
  std::optional<Progress> lines_;        // of the present epoch
  detail::LoaderBatches batches_;        // of the present fit()
  std::unique_ptr<TrainerCallbacks> callbacks_;  // of the present fit()
};

}  // namespace lockstep
