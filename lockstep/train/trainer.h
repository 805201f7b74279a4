// SPDX-License-Identifier: BSD-3-Clause
// The training loop that every program writes, the same for one device, replicas and ranks:
//
//   lockstep::Trainer trainer(net, group, {.epochs = 5, .max_grad_norm = 1});
//   trainer.optimize_with<lockstep::optim::Adam>(torch::optim::AdamOptions(1e-3));
//   trainer.fit(*loader, [&](auto& model, auto& batch) {
//     return torch::cross_entropy_loss(model(batch.data), batch.target);
//   }, {.sampler = &sampler});
//
// It does nothing that a program cannot do without it: modes.md and the examples show the loop.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

class TrainerSaves;
struct TrainerProgress;

namespace detail {

// -1 if the batch does not say.
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

}  // namespace detail

// The part of a Trainer that does not depend on the module's type.
class TrainerBase {
 public:
  TrainerBase(const TrainerBase&) = delete;
  TrainerBase& operator=(const TrainerBase&) = delete;
  virtual ~TrainerBase();

  ProcessGroup& group() const { return *group_; }
  // UsageError before optimize_with().
  torch::optim::Optimizer& optimizer() const;
  GradScaler& scaler() { return scaler_; }

 protected:
  using Loss = std::function<at::Tensor()>;
  // Trains on one batch of so many samples; `last` is the epoch's last one.
  using TrainOn = std::function<void(std::int64_t samples, bool last, const Loss& loss)>;

  TrainerBase(std::shared_ptr<ProcessGroup> group, TrainerOptions options);
  // automatic is replaced by what it stands for.
  const TrainerOptions& options() const { return options_; }
  void use(std::shared_ptr<torch::nn::Module> module,
           std::shared_ptr<DistributedDataParallelBase> model,
           std::unique_ptr<torch::optim::Optimizer> optimizer);
  std::vector<EpochSummary> run_epochs(const std::function<void(const TrainOn&)>& run_batches,
                                       const FitOptions& fit);

 private:
  class Epoch;

  bool open_checkpoints(EpochSampler* sampler);
  void begin_epoch(bool resumed, const FitOptions& fit);
  EpochSummary run_epoch(const std::function<void(const TrainOn&)>& run_batches,
                         const FitOptions& fit, bool resumed);
  void save(const std::optional<double>& score, const EpochSampler* sampler);
  void note_evaluation(const std::optional<double>& evaluation);
  bool has_no_patience_left() const;
  at::Tensor backward(const Loss& loss, bool synchronize);
  bool step();
  void clip_gradients();
  void scale_learning_rates();

  std::shared_ptr<ProcessGroup> group_;
  TrainerOptions options_;
  GradScaler scaler_;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<DistributedDataParallelBase> model_;  // null unless distributed
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  at::Device device_ = at::kCPU;  // of the parameters
  std::vector<double> rates_;     // of each parameter group, before the schedule
  std::optional<Progress> lines_;
  std::unique_ptr<TrainerProgress> progress_;
  std::unique_ptr<TrainerSaves> saves_;  // from the first fit() on, if there are checkpoints
};

// M is deduced from the module, as for the wrappers.
template <class M>
class Trainer : public TrainerBase {
 public:
  using Handle = typename WrappedModule<M>::Handle;

  // What the loss function gets: call it as the module is called.
  class Model {
   public:
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
    friend class Trainer;
    void train() {
      module_->train();
      if (distributed_) distributed_.ptr()->train();
      if (data_parallel_) data_parallel_.ptr()->train();
    }

    Handle module_;
    DistributedDataParallel<M> distributed_;
    DataParallel<M> data_parallel_;
  };

  // Collective if distributed: ranks then begin with rank 0's parameters. The module stays the
  // user's own, and has the trained parameters at any time. UsageError for options that contradict
  // each other or the group.
  Trainer(Handle module, GroupArgument group, TrainerOptions options = {});
  Trainer(M& module, GroupArgument group, TrainerOptions options = {}) requires PlainModule<M>
      : Trainer(handle_of(module), std::move(group), std::move(options)) {}

  Model& model() { return model_; }
  const Model& model() const { return model_; }

  // Once, before fit(): an optimizer of all parameters. With .shard_optimizer it must be one of
  // lockstep::optim, and the call is collective.
  template <class Optimizer, class Options>
  void optimize_with(const Options& options);
  // The same with an optimizer that was made for the module's parameters, or for
  // model().distributed(). A sharded one needs .shard_optimizer too.
  void optimize_with(std::unique_ptr<torch::optim::Optimizer> optimizer) {
    use(pointer_of(model_.module_), model_.distributed_ ? model_.distributed_.ptr() : nullptr,
        std::move(optimizer));
  }

  // Collective if distributed. Puts the module into training mode, and trains on a range of
  // batches, once per epoch: libtorch's data loaders, MemoryLoader, a std::vector. `loss(model,
  // batch)` returns the mean loss over the batch as a tensor of one element; batches are on
  // whatever device the range or the function puts them. Every rank needs the same number of
  // batches. Returns a summary per epoch; of one that was resumed in its middle, for the rest.
  // What the functions throw passes through, and leaves the trainer usable unless the group is not.
  //
  // With checkpoints, fit() can be called once, and the last one is on the disk when it returns:
  // BackendError if it could not be written.
  template <class Batches, class LossFunction>
  std::vector<EpochSummary> fit(Batches&& batches, LossFunction&& loss,
                                const FitOptions& options = {});

 private:
  Model model_;
};

template <class M>
Trainer<M>::Trainer(Handle module, GroupArgument group, TrainerOptions trainer_options)
    : TrainerBase(group.shared(), std::move(trainer_options)) {
  model_.module_ = module;
  if (options().mode == TrainingMode::distributed) {
    model_.distributed_ =
        DistributedDataParallel<M>(std::move(module), group, options().distributed);
  } else if (options().mode == TrainingMode::data_parallel) {
    model_.data_parallel_ = DataParallel<M>(std::move(module), options().data_parallel);
  }
}

template <class M>
template <class Optimizer, class Options>
void Trainer<M>::optimize_with(const Options& optimizer_options) {
  const auto distributed = model_.distributed_ ? model_.distributed_.ptr() : nullptr;
  if constexpr (std::is_constructible_v<Optimizer, DistributedDataParallelBase&, Options>) {
    if (distributed && options().shard_optimizer) {
      return use(pointer_of(model_.module_), distributed,
                 std::make_unique<Optimizer>(*distributed, optimizer_options));
    }
  } else if (options().shard_optimizer) {
    throw UsageError(
        "[Trainer] .shard_optimizer needs an optimizer of lockstep::optim, such as "
        "optimize_with<lockstep::optim::Adam>");
  }
  use(pointer_of(model_.module_), distributed,
      std::make_unique<Optimizer>(model_.module_->parameters(), optimizer_options));
}

template <class M>
template <class Batches, class LossFunction>
std::vector<EpochSummary> Trainer<M>::fit(Batches&& batches, LossFunction&& loss,
                                          const FitOptions& fit_options) {
  const auto run_batches = [&](const TrainOn& train_on) {
    model_.train();
    // A checkpoint has the random numbers that the next batch may be drawn with, so that batch must
    // not have been drawn; but before the last step of an accumulation, one must know whether it
    // is.
    const bool looks_ahead = options().accumulation_steps > 1;
    auto next = batches.begin();
    const auto end = batches.end();
    while (next != end) {
      if (looks_ahead) {
        auto batch = *next;  // an advanced iterator may reuse its batch
        ++next;
        train_on(detail::samples_in(batch), !(next != end), [&] { return loss(model_, batch); });
      } else {
        auto&& batch = *next;
        train_on(detail::samples_in(batch), false, [&] { return loss(model_, batch); });
        ++next;
      }
    }
  };
  return run_epochs(run_batches, fit_options);
}

template <ModuleHolder M, class Group>
Trainer(M, Group&&, TrainerOptions = {}) -> Trainer<M>;
template <PlainModule M, class Group>
Trainer(std::shared_ptr<M>, Group&&, TrainerOptions = {}) -> Trainer<M>;
template <PlainModule M, class Group>
Trainer(M&, Group&&, TrainerOptions = {}) -> Trainer<M>;

}  // namespace lockstep
