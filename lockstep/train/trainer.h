// SPDX-License-Identifier: BSD-3-Clause
// Public. The training loop that every program writes, the same for one device, replicas and ranks:
//
//   lockstep::Trainer trainer(net, group, {.epochs = 5, .max_grad_norm = 1});
//   trainer.optimize_with<lockstep::optim::Adam>(torch::optim::AdamOptions(1e-3));
//   trainer.fit(*loader, [&](auto& model, auto& batch) {
//     return torch::cross_entropy_loss(model(batch.data), batch.target);
//   }, {.sampler = &sampler});
//
// A program can do all of this without a Trainer: docs/modes.md and the examples show the loop.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/train/trainer_core.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// M is deduced from the module, as in the wrappers.
template <class M>
class Trainer : public TrainerCore {
 public:
  using Handle = typename WrappedModule<M>::Handle;
  // The first argument of the loss function: call it as the module is called. Its distributed() and
  // data_parallel() are the wrappers, each null in the other modes.
  using Model = TrainerModel<M>;

  // Collective if distributed: ranks then start with the parameters of rank 0. The module stays
  // usable, and has the trained parameters at any time. UsageError for options that contradict each
  // other or the group.
  Trainer(Handle module, GroupArgument group, TrainerOptions options = {})
      : TrainerCore(group.shared(), std::move(options)),
        model_(std::move(module), group, this->options()) {}
  Trainer(M& module, GroupArgument group, TrainerOptions options = {}) requires PlainModule<M>
      : Trainer(handle_of(module), std::move(group), std::move(options)) {}

  Model& model() { return model_; }
  const Model& model() const { return model_; }
  using TrainerCore::group;
  using TrainerCore::optimizer;  // UsageError before optimize_with()
  using TrainerCore::scaler;     // enabled only with .amp = at::kHalf

  // Call it once, before fit(). Makes an optimizer of all parameters, and lists tied weights once.
  // With .shard_optimizer, Optimizer must be from lockstep::optim, and the call is collective.
  template <class Optimizer, class Options>
  void optimize_with(const Options& options) {
    const bool sharded = this->options().shard_optimizer;
    optimize_with(model_.template make_optimizer<Optimizer>(options, sharded));
  }
  // Takes an optimizer that was made for the module's parameters, or for model().distributed(). A
  // sharded optimizer needs .shard_optimizer too. Removes repeated parameters from a parameter
  // group: parameters() lists tied weights twice. UsageError if a parameter is in two groups.
  void optimize_with(std::unique_ptr<torch::optim::Optimizer> optimizer) {
    use(pointer_of(model_.module_), model_.base(), std::move(optimizer));
  }

  // Collective if distributed. Puts the module into training mode, and trains on a range of
  // batches, once per epoch: libtorch's data loaders, MemoryLoader, a std::vector. `loss(model,
  // batch)` returns the mean loss over the batch as a tensor of one element. The range or the
  // function chooses the device of a batch. Every rank needs the same number of batches. Returns a
  // summary per epoch; for an epoch that was resumed in its middle, it covers the rest. Exceptions
  // of the functions pass through and leave the trainer usable, unless the group is unusable.
  //
  // With checkpoints, fit() can be called once, and the last checkpoint is on the disk when it
  // returns: BackendError if it could not be written.
  template <class Batches, class LossFunction>
  std::vector<EpochSummary> fit(Batches&& batches, LossFunction&& loss,
                                const FitOptions& options = {}) {
    const std::int64_t batches_per_step = this->options().accumulation_steps;
    const auto run_batches = [&](const detail::TrainOn& train_on) {
      model_.train();
      detail::for_each_batch(batches, batches_per_step, [&](auto& batch, bool is_last) {
        const auto loss_of_batch = [&] { return loss(model_, batch); };
        train_on({detail::samples_in(batch), is_last, loss_of_batch});
      });
    };
    return run_epochs(run_batches, options);
  }

 private:
  Model model_;
};

template <ModuleHolder M, class Group>
Trainer(M, Group&&, TrainerOptions = {}) -> Trainer<M>;
template <PlainModule M, class Group>
Trainer(std::shared_ptr<M>, Group&&, TrainerOptions = {}) -> Trainer<M>;
template <PlainModule M, class Group>
Trainer(M&, Group&&, TrainerOptions = {}) -> Trainer<M>;

}  // namespace lockstep
