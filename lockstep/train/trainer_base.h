// SPDX-License-Identifier: BSD-3-Clause
// What a Trainer (trainer.h) is made of: the model that its loss function gets, and all that does
// not depend on the module's type.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
#include "lockstep/train/trainer_options.h"

namespace lockstep {

template <class M>
class Trainer;
class TrainerLoop;

namespace detail {

struct TrainerBatch {
  std::int64_t samples;  // -1 if the batch does not say
  bool is_last;          // of its epoch, as far as is known
  std::function<at::Tensor()> loss;
};

using TrainOn = std::function<void(const TrainerBatch&)>;

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

// Collective. Converts the net's batch normalization for a group of its own, which is made only for
// a net that has some.
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

  // The wrappers, each null in the other modes: for communication hooks, and what else they have.
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

  // Of all parameters.
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

// The part of a Trainer that does not depend on the module's type.
class TrainerBase {
 public:
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;
  virtual ~TrainerBase();

  ProcessGroup& group() const;
  // UsageError before optimize_with().
  torch::optim::Optimizer& optimizer() const;
  GradScaler& scaler();

 protected:
  TrainerBase(std::shared_ptr<ProcessGroup> group, TrainerOptions options);
  // automatic is replaced by what it stands for.
  const TrainerOptions& options() const;
  // The model is null unless distributed.
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  // run_batches trains on each batch of an epoch.
  std::vector<EpochSummary> run_epochs(
      const std::function<void(const detail::TrainOn&)>& run_batches, const FitOptions& fit);

 private:
  std::unique_ptr<TrainerLoop> loop_;
};

}  // namespace lockstep
