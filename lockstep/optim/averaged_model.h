// SPDX-License-Identifier: BSD-3-Clause
// Public. Averages of a model's weights over the steps of training, like
// torch.optim.swa_utils.AveragedModel, timm's ModelEma and Lightning's WeightAveraging:
//
//   lockstep::ExponentialMovingAverage ema(model, {.decay = 0.999});
//   for (...) {
//     loss(model(input), target).backward();
//     optimizer.step();
//     ema.update();
//   }
//   lockstep::accuracy(ema.module(), ...);      // a module with the averaged weights
//   {
//     const auto averaged = ema.swap_in();      // or the model itself, for the length of a scope
//     lockstep::accuracy(model, ...);
//   }
//
// Nothing is exchanged: with DistributedDataParallel and sharded optimizers, the weights are the
// same on every rank after each step, so each rank computes the same averages from its own weights,
// bit for bit. With DataParallel there is one set of weights.
//
// For a checkpoint: CheckpointContents{.module = ..., .tensors = ema.state_dict()}. load() then
// restores the averages too, without load_state_dict().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/parallel/replica_factory.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

struct AveragedModelOptions {
  // Averages the buffers of floating-point types too, such as the statistics of a BatchNorm.
  // Otherwise update() copies them, as it does with all other buffers.
  bool use_buffers = false;
  // How module() makes the module, as in DataParallelOptions; clone() needs neither.
  ModuleFactory make_replica = {};
  bool trust_constructors = false;
};

struct ExponentialMovingAverageOptions {
  // The weight of the old average in each update, from 0 to below 1. The average covers about the
  // last 1 / (1 - decay) steps.
  double decay = 0.999;
  // Begins with a small decay, so that the weights of the first steps are soon forgotten: update
  // number n, counted from 0, has at most the decay (1 + n) / (10 + n), as in TensorFlow.
  bool warmup = false;
  // As in AveragedModelOptions.
  bool use_buffers = false;
  ModuleFactory make_replica = {};
  bool trust_constructors = false;
};

// What both averages have in common. For one thread at a time.
class WeightAverage {
 public:
  WeightAverage(const WeightAverage&) = delete;
  WeightAverage& operator=(const WeightAverage&) = delete;

  // Takes the model's weights into the average; the first update copies them. Call it after
  // optimizer.step(), and after each step alike on every rank.
  //
  // UsageError, and nothing has changed, if the model has got or lost parameters or buffers, if one
  // has another shape, type or device than when this object was made, or while swap_in()'s scope
  // lasts.
  void update();

  // The number of updates.
  std::int64_t updates() const;

  // The model has the averaged weights while this object lives.
  class [[nodiscard]] Swapped {
   public:
    Swapped(const Swapped&) = delete;
    Swapped& operator=(const Swapped&) = delete;
    // Gives the model its own weights and buffers back, bit for bit, also while an exception leaves
    // the scope. Changes made in the scope are lost.
    ~Swapped();

   private:
    friend class WeightAverage;
    explicit Swapped(WeightAverage& average);
    void restore() noexcept;

    struct Saved {
      at::Tensor original;
      at::Tensor values;
    };

    WeightAverage& average_;
    std::vector<Saved> saved_;
  };

  // Copies the averages into the model's parameters and buffers, which stay the same tensors, and
  // keeps their values until the result is destroyed; it must not outlive this object. Not
  // collective: rank 0 alone may do it, too. The forward of a DistributedDataParallel broadcasts
  // buffers, though, so all ranks must be in the scope for it.
  //
  // UsageError before the first update, in the scope of another swap_in(), and as in update().
  Swapped swap_in();

  // The names and tensors of PyTorch's AveragedModel: "n_averaged", then each parameter and buffer
  // of the averaged module after "module.". Averages of half and bfloat16 parameters are floats.
  // Tied weights have the same tensor under each name. The tensors share the memory of this object:
  // clone them, or write them to a file, before the next update.
  std::vector<NamedTensor> state_dict() const;
  // Copies such tensors; their types may differ. CheckpointError, which lists every difference, and
  // nothing has changed, if a name is missing or unexpected, or if a shape differs.
  void load_state_dict(std::span<const NamedTensor> state);

 protected:
  // `decay`: empty for equal weights. UsageError if the module is empty, if it has no parameters,
  // or if a parameter is neither of a floating-point nor of a complex type.
  WeightAverage(const char* name, std::shared_ptr<torch::nn::Module> module,
                ModuleFactory by_default, ExponentialMovingAverageOptions options,
                std::optional<double> decay);
  ~WeightAverage() = default;

  // The module with the averages, in evaluation mode.
  std::shared_ptr<torch::nn::Module> averaged_module();

 private:
  // One for each tensor of the module.
  struct Average {
    std::vector<std::string> names;  // several if it is tied
    // What the tensor was like when this object was made.
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    at::Device device;
    at::Tensor values;
    bool is_averaged;  // otherwise copied
  };

  std::vector<at::Tensor> current() const;
  double weight_of_next() const;
  void require_updates(const char* call) const;
  [[noreturn]] void refuse(const std::string& cause, const std::string& remedy) const;

  const char* name_;
  std::shared_ptr<torch::nn::Module> module_;
  ModuleFactory by_default_;
  ExponentialMovingAverageOptions options_;
  std::optional<double> decay_;
  std::vector<Average> averages_;
  at::Tensor count_;  // "n_averaged"
  std::shared_ptr<torch::nn::Module> replica_;
  bool swapped_ = false;
};

namespace detail {

// The module to average, as its holder or shared_ptr: for a wrapper, the module inside.
template <class M>
typename WrappedModule<M>::Handle module_to_average(const DistributedDataParallel<M>& model) {
  return model ? model->module() : typename WrappedModule<M>::Handle(nullptr);
}
template <class M>
typename WrappedModule<M>::Handle module_to_average(const DataParallel<M>& model) {
  return model ? model->module() : typename WrappedModule<M>::Handle(nullptr);
}
template <ModuleHolder M>
M module_to_average(const M& holder) {
  return holder;
}
template <PlainModule M>
std::shared_ptr<M> module_to_average(const std::shared_ptr<M>& module) {
  return module;
}
template <PlainModule M>
std::shared_ptr<M> module_to_average(M& module) {
  return handle_of(module);
}
template <PlainModule M>
std::shared_ptr<M> module_to_average(M* module) {
  return handle_of(module);
}

template <class Handle>
struct HandledModule {
  using Type = Handle;
  using Impl = typename Handle::ContainedType;
};
template <class M>
struct HandledModule<std::shared_ptr<M>> {
  using Type = M;
  using Impl = M;
};

template <class Model>
concept CanBeAveraged = requires(Model& model) {
  module_to_average(model);
};

// M of what a program passes: Net for a Net or a DistributedDataParallel<Net>.
template <CanBeAveraged Model>
using AveragedType =
    typename HandledModule<decltype(module_to_average(std::declval<Model&>()))>::Type;

}  // namespace detail

// The equal average of the weights at each update, as for stochastic weight averaging (Izmailov et
// al. 2018): call update() once in a while, such as at the end of each of the last epochs.
//
// M is deduced, as for DataParallel, from a holder made by TORCH_MODULE, a shared_ptr, a module by
// reference or pointer, which must outlive this object unless a shared_ptr owns it, or a wrapper
// (DistributedDataParallel, DataParallel), whose inner module is averaged.
template <class M>
class AveragedModel : public WeightAverage {
 public:
  using Handle = typename WrappedModule<M>::Handle;

  template <detail::CanBeAveraged Model>
  explicit AveragedModel(Model&& model, AveragedModelOptions options = {})
      : AveragedModel("AveragedModel", detail::module_to_average(model),
                      {.use_buffers = options.use_buffers,
                       .make_replica = std::move(options.make_replica),
                       .trust_constructors = options.trust_constructors},
                      std::nullopt) {}

  // A module of its own with the averages and the buffers, made by the first call: by clone(), or
  // as the options say. It is in evaluation mode, and its parameters do not require gradients.
  // Valid until the next update(); call module() again after it. UsageError before the first
  // update, and if the module cannot be made; swap_in() needs none.
  Handle module() { return Handle(std::dynamic_pointer_cast<Impl>(averaged_module())); }

 protected:
  AveragedModel(const char* name, const Handle& module, ExponentialMovingAverageOptions options,
                std::optional<double> decay)
      : WeightAverage(name, pointer_of(module), by_default(module), std::move(options), decay) {}

 private:
  using Impl = typename detail::HandledModule<Handle>::Impl;

  static ModuleFactory by_default(const Handle& module) {
    const std::shared_ptr<torch::nn::Module> pointer = pointer_of(module);
    return pointer ? default_factory<Impl>(*pointer) : ModuleFactory();
  }
};

template <detail::CanBeAveraged Model>
AveragedModel(Model&&, AveragedModelOptions = {}) -> AveragedModel<detail::AveragedType<Model>>;

// The exponential moving average of the weights: average = decay * average + (1 - decay) * weights
// in each update, after the first. Call update() after every step. UsageError for a decay out of
// range.
template <class M>
class ExponentialMovingAverage : public AveragedModel<M> {
 public:
  template <detail::CanBeAveraged Model>
  explicit ExponentialMovingAverage(Model&& model, ExponentialMovingAverageOptions options = {})
      : AveragedModel<M>("ExponentialMovingAverage", detail::module_to_average(model), options,
                         options.decay) {}
};

template <detail::CanBeAveraged Model>
ExponentialMovingAverage(Model&&, ExponentialMovingAverageOptions = {})
    -> ExponentialMovingAverage<detail::AveragedType<Model>>;

}  // namespace lockstep
