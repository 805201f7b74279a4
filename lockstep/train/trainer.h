// SPDX-License-Identifier: BSD-3-Clause
// The training loop that every program writes, the same for one device, replicas and ranks:
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
#include "lockstep/train/trainer_base.h"
#include "lockstep/train/trainer_options.h"

namespace lockstep {

// M is deduced from the module, as for the wrappers.
template <class M>
class Trainer : public TrainerBase {
 public:
  using Handle = typename WrappedModule<M>::Handle;
  // What the loss function gets: call it as the module is called. Its distributed() and
  // data_parallel() are the wrappers, each null in the other modes.
  using Model = TrainerModel<M>;

  // Collective if distributed: ranks then begin with rank 0's parameters. The module stays the
  // user's own, and has the trained parameters at any time. UsageError for options that contradict
  // each other or the group.
  Trainer(Handle module, GroupArgument group, TrainerOptions options = {})
      : TrainerBase(group.shared(), std::move(options)),
        model_(std::move(module), group, this->options()) {}
  Trainer(M& module, GroupArgument group, TrainerOptions options = {}) requires PlainModule<M>
      : Trainer(handle_of(module), std::move(group), std::move(options)) {}

  Model& model() { return model_; }
  const Model& model() const { return model_; }
  using TrainerBase::group;
  using TrainerBase::optimizer;  // UsageError before optimize_with()
  using TrainerBase::scaler;     // enabled only with .amp = at::kHalf

  // Once, before fit(): an optimizer of all parameters, each once, also tied weights. With
  // .shard_optimizer it must be one of lockstep::optim, and the call is collective.
  template <class Optimizer, class Options>
  void optimize_with(const Options& options) {
    const bool sharded = this->options().shard_optimizer;
    optimize_with(model_.template make_optimizer<Optimizer>(options, sharded));
  }
  // The same with an optimizer that was made for the module's parameters, or for
  // model().distributed(). A sharded one needs .shard_optimizer too. A parameter that a group lists
  // twice, as parameters() lists tied weights, stays in it once. UsageError if one is in two
  // groups.
  void optimize_with(std::unique_ptr<torch::optim::Optimizer> optimizer) {
    use(pointer_of(model_.module_), model_.base(), std::move(optimizer));
  }

  // Collective if distributed. Puts the module into training mode, and trains on a range of
  // batches, once per epoch: libtorch's data loaders, MemoryLoader, a std::vector. `loss(model,
  // batch)` returns the mean loss over the batch as a tensor of one element; batches are on
  // whatever device the range or the function puts them. Every rank needs the same number of
  // batches. Returns a summary per epoch; if an epoch was resumed in its middle, its summary covers
  // the rest. Exceptions of the functions pass through and leave the trainer usable, unless the
  // group is unusable.
  //
  // With checkpoints, fit() can be called once, and the last one is on the disk when it returns:
  // BackendError if it could not be written.
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
