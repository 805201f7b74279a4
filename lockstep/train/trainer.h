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

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/group_argument.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/share_buffers.h"
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
        model_(std::move(module), group, this->options()) {
    if (!this->options().ema_decay) return;
    const DataParallelOptions& copies = this->options().data_parallel;
    ema_.emplace(model_.module_,
                 ExponentialMovingAverageOptions{.decay = *this->options().ema_decay,
                                                 .make_replica = copies.make_replica,
                                                 .trust_constructors = copies.trust_constructors});
    average_with(*ema_);
  }
  Trainer(M& module, GroupArgument group, TrainerOptions options = {}) requires PlainModule<M>
      : Trainer(handle_of(module), std::move(group), std::move(options)) {}

  Model& model() { return model_; }
  const Model& model() const { return model_; }
  // The average of the weights; null without .ema_decay. Its module() is made as .data_parallel
  // says.
  ExponentialMovingAverage<M>* ema() { return ema_ ? &*ema_ : nullptr; }
  using TrainerCore::group;
  using TrainerCore::load_best;
  using TrainerCore::optimizer;  // UsageError before optimize_with()
  using TrainerCore::scaler;     // enabled only with .amp = at::kHalf

  // Call one of these, once, before fit(). UsageError if a parameter is in two groups.
  //
  // Makes an optimizer of all parameters, and lists tied weights once. With .shard_optimizer,
  // Optimizer must be from lockstep::optim, or derived from one, and the call is collective.
  template <class Optimizer, class Options>
  void optimize_with(const Options& options) {
    optimize_with([this, options]() -> std::unique_ptr<torch::optim::Optimizer> {
      return model_.template make_optimizer<Optimizer>(options, this->options());
    });
  }
  // Takes an optimizer that the function makes for the module's parameters, for example with
  // several groups of them; for a sharded one, which needs .shard_optimizer too, see the next
  // function. In an elastic job, fit() calls the function again when the ranks of a sharded
  // optimizer have changed, on all of them; group() and model().distributed() are the new ones
  // then.
  void optimize_with(std::function<std::unique_ptr<torch::optim::Optimizer>()> make) {
    auto optimizer = make();
    use(pointer_of(model_.module_), model_.base(), model_.replicas(), std::move(optimizer),
        std::move(make));
  }
  // Takes an optimizer that was made for the module's parameters, or for model().distributed(). A
  // sharded optimizer needs .shard_optimizer too; with .microbatches, make it from the parameters
  // and the group. Removes repeated parameters from a parameter group: parameters() lists tied
  // weights twice. An elastic job refuses .shard_optimizer with it.
  void optimize_with(std::unique_ptr<torch::optim::Optimizer> optimizer) {
    use(pointer_of(model_.module_), model_.base(), model_.replicas(), std::move(optimizer), {});
  }

  // Collective if distributed. Puts the module into training mode, and trains on a range of
  // batches, once per epoch: libtorch's data loaders, MemoryLoader, a std::vector. `loss(model,
  // batch)` returns the mean loss over the batch as a tensor of one element. The range or the
  // function chooses the device of a batch. Every rank needs the same number of batches. Returns a
  // summary per epoch; for an epoch that was resumed in its middle, it covers the rest. Exceptions
  // of the functions pass through and leave the trainer usable, unless the group is unusable or
  // there are checkpoints. If an elastic job is to have fewer ranks, the highest ones do not
  // return: the launcher ends their processes (docs/elastic.md).
  //
  // A callback may freeze and unfreeze parameters before an epoch, alike on every rank: the module
  // is then wrapped again, so register communication hooks after it. UsageError if the optimizer is
  // sharded, except with .microbatches.
  //
  // With checkpoints, fit() can be called once: to go on after an exception, make another trainer
  // with .resume. The last checkpoint is on the disk when fit() returns: BackendError if it could
  // not be written.
  template <class Batches, class LossFunction>
  std::vector<EpochSummary> fit(Batches&& batches, LossFunction&& loss,
                                const FitOptions& options = {}) {
    const std::int64_t batches_per_step = this->options().accumulation_steps;
    // The replicas compute the microbatches of a step together.
    const bool keeps_batches = this->options().microbatches > 0 && model_.data_parallel();
    constexpr bool kRange = detail::BatchRange<Batches>;
    static_assert(kRange,
                  "fit() takes a range of batches: *loader, if loader is what "
                  "torch::data::make_data_loader() returned");
    if constexpr (kRange) {
      const auto run_batches = [&](const detail::TrainOn& train_on) {
        model_.train();
        detail::for_each_batch(batches, batches_per_step, [&](auto& batch, bool is_last) {
          constexpr bool kTensor = std::convertible_to<decltype(loss(model_, batch)), at::Tensor>;
          static_assert(kTensor,
                        "the loss function of fit() returns a tensor of one element: not "
                        "loss.item<float>(), and not nothing");
          if constexpr (kTensor) {
            const std::int64_t samples = detail::samples_in(batch);
            if (!keeps_batches) {
              return train_on({samples, is_last, [&] { return loss(model_, batch); }});
            }
            return train_on({samples, is_last, [&loss, this, kept = batch]() mutable -> at::Tensor {
                               return loss(model_, kept);
                             }});
          } else {
            return false;
          }
        });
      };
      return run_epochs(run_batches, detail::batches_in(batches), options);
    } else {
      return {};
    }
  }

  // Collective. Returns the mean loss over the samples of a data set that the ranks share, for the
  // callback evaluate. The loader, the sampler, the mode of the module, the buffers and the errors
  // are those of evaluate() (evaluate.h); `loss(model, batch)` returns the mean over the batch, as
  // in fit(), and runs within Autocast with .amp.
  template <class Loader, class LossFunction>
  double validation_loss(Loader& loader, const DistributedSampler& sampler, LossFunction&& loss) {
    const CallScope scope(CallOrigin::evaluate);
    if constexpr (requires { loader.options().enforce_ordering; }) {
      detail::require_order(loader.options().enforce_ordering, group());
    }
    torch::nn::Module& module = *pointer_of(model_.module_);
    share_buffers(module, group(), options().evaluation_buffers);
    const detail::EvaluationMode mode(&module);
    const auto device = detail::device_of(&module);
    detail::EvaluatedBatches batches(sampler, group(), device);
    for (const auto& loaded : loader) {
      auto batch = loaded;
      c10::SmallVector<at::Tensor*, 4> tensors;
      const auto note = [&](at::Tensor& tensor) { tensors.push_back(&tensor); };
      for_each_tensor(batch.data, note);
      for_each_tensor(batch.target, note);
      if (!batches.take(tensors)) continue;
      std::optional<Autocast> autocast;
      if (options().amp && device) autocast.emplace(*device, options().amp);
      const at::Tensor mean = loss(model_, batch);
      batches.add(mean.to(at::kDouble).mul(tensors.front()->size(0)));
    }
    return batches.over_ranks().mean();
  }

 private:
  std::shared_ptr<DistributedDataParallelBase> wrap_again() override {
    model_.wrap_again(GroupArgument(group()), options());
    return model_.base();
  }

  Model model_;
  std::optional<ExponentialMovingAverage<M>> ema_;
};

template <ModuleHolder M, class Group>
Trainer(M, Group&&, TrainerOptions = {}) -> Trainer<M>;
template <PlainModule M, class Group>
Trainer(std::shared_ptr<M>, Group&&, TrainerOptions = {}) -> Trainer<M>;
template <PlainModule M, class Group>
Trainer(M&, Group&&, TrainerOptions = {}) -> Trainer<M>;

}  // namespace lockstep
