// SPDX-License-Identifier: BSD-3-Clause
// Public. Evaluates a model on a data set that the ranks share, and counts each sample once.
//
//   lockstep::DistributedSampler sampler(tests, group, {.shuffle = false});
//   auto loader = torch::data::make_data_loader(tests.map(Stack<>()), sampler, 500);
//   double right = lockstep::accuracy(model, *loader, sampler, group);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/comm/types/call_origin.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/train/share_buffers.h"

namespace lockstep {

struct EvaluateOptions {
  // The values that the buffers of the module get on every rank before the first batch.
  EvaluationBuffers buffers = EvaluationBuffers::of_rank_0;
};

// The result of an evaluation, with the same bits on every rank.
struct Evaluation {
  // The sums of the metric over all samples, one entry per element.
  std::vector<double> sums = {};
  // The size of the data set, unless the sampler drops a remainder.
  std::int64_t samples = 0;

  // The mean over the samples.
  double mean(std::size_t entry = 0) const { return sums.at(entry) / static_cast<double>(samples); }
};

namespace detail {

// Puts a module and its submodules into eval mode, and turns gradients off; the destructor restores
// the mode of each.
class EvaluationMode {
 public:
  // `module` is null if the model is a function.
  explicit EvaluationMode(torch::nn::Module* module);
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  ~EvaluationMode();

 private:
  struct Mode {
    torch::nn::Module* module;
    bool training;
  };
  at::NoGradGuard no_grad_;
  std::vector<std::shared_ptr<torch::nn::Module>> submodules_ = {};
  std::vector<Mode> modes_ = {};
};

// Returns the device of the module's first parameter, or of its first buffer if it has no
// parameters; nullopt if it has neither or is null.
std::optional<at::Device> device_of(const torch::nn::Module* module);

// This rank's batches of an evaluation, and the sums that the metric returned.
class EvaluatedBatches {
 public:
  // Keeps neither the sampler nor the group alive. Without a device, batches are not moved.
  EvaluatedBatches(const DistributedSampler& sampler, ProcessGroup& group,
                   std::optional<at::Device> device);

  // Cuts padding off the tensors of a batch and moves them to the device. Returns whether samples
  // are left.
  bool take(c10::ArrayRef<at::Tensor*> tensors);
  // Adds what the metric returned for a batch.
  void add(const at::Tensor& sums);
  // Collective. Adds up the sums and the samples of all ranks.
  Evaluation over_ranks() const;

 private:
  ProcessGroup& group_;
  const DistributedSampler& sampler_;
  std::int64_t padding_starts_;
  std::optional<at::Device> device_;
  std::int64_t loaded_ = 0;
  at::Tensor sums_;
};

// UsageError if batches may come in another order than the sampler's.
void require_order(bool ordered, const ProcessGroup& group);
// Counts the samples of a batch whose greatest output is at their target.
at::Tensor count_right(const at::Tensor& output, const at::Tensor& target,
                       const ProcessGroup& group);

template <class Model>
concept PointsToModule = requires(Model& model) {
  { *model } -> std::convertible_to<const torch::nn::Module&>;
};

// A module, a holder or a pointer to a module: not a function.
template <class Model>
concept HasModule = PlainModule<Model> || ModuleHolder<Model> || PointsToModule<Model>;

template <HasModule Model>
auto& module_of(Model& model) {
  if constexpr (PlainModule<Model>) {
    return model;
  } else if constexpr (ModuleHolder<Model>) {
    return *model.ptr();  // a const holder's module is not const
  } else {
    return *model;
  }
}

// Returns the module of the model; null if the model is a function.
template <class Model>
torch::nn::Module* module_in(Model& model) {
  if constexpr (HasModule<Model>) {
    constexpr bool kConst = std::is_const_v<std::remove_reference_t<decltype(module_of(model))>>;
    static_assert(!kConst,
                  "an evaluation changes the module's mode until it ends: pass a module "
                  "that is not const");
    if constexpr (!kConst) return &module_of(model);
  }
  return nullptr;
}

// A wrapper whose own forward takes TorchScript's values.
template <class Module>
concept WrapsTorchScript = std::derived_from<Module, ParallelModule> &&
    std::same_as<typename Module::Handle, typename WrappedModule<ScriptModule>::Handle>;

template <class Model, class Input>
auto output_of(Model& model, const Input& input) {
  if constexpr (HasModule<Model>) {
    auto& module = module_of(model);
    using Module = std::remove_reference_t<decltype(module)>;
    if constexpr (WrapsTorchScript<Module> && std::same_as<Input, at::Tensor>) {
      return static_cast<ParallelModule&>(module).forward(input);
    } else {
      return module.forward(input);
    }
  } else {
    return model(input);
  }
}

}  // namespace detail

// Calls metric(model(data), target) for each batch, and adds up the returned sums over all ranks'
// samples. The metric returns a tensor with one or more sums over the batch, in a type that
// converts to double and with the same number of elements each time.
//
//   const auto sum_of_losses = [](const at::Tensor& output, const at::Tensor& target) {
//     return torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum);
//   };
//   double loss = lockstep::evaluate(model, *loader, sampler, group, sum_of_losses).mean();
//
// The model is a module, a holder, a pointer to a module, a wrapper such as
// DistributedDataParallel, or a function, as for a torch::jit::Module. A module is put into eval
// mode, its submodules too; afterwards, also after an exception, each is in the mode that it had. A
// function sets no mode. Gradients are off.
//
// First every rank gets the module's buffers, such as the statistics of a BatchNorm, from rank 0
// (share_buffers.h), as in the next training forward of a DistributedDataParallel: the model that
// is scored is the one that a checkpoint has. For a function, call share_buffers() yourself.
// Parameters that differ between ranks, as post_local_sgd_hook leaves them, stay different: average
// them before.
//
// The loader is a MemoryLoader or a torch::data loader with stacked batches, made with a copy of
// this sampler; data and target are tensors or structures of tensors (for_each_tensor.h), with the
// samples in dimension 0. Batches are moved to the device of the module's first parameter (without
// any, of its first buffer); for a function they stay where the loader put them. The model never
// sees padding.
//
// Collective, blocking: after that exchange each rank runs its own batches, and the ranks exchange
// their sums once at the end. UsageError on every rank if a sampler was made for another rank or
// number of ranks, if samplers differ in their number of samples or their seeds, if a loader does
// not yield the sampler's samples (another sampler, or drop_last), if no rank has any, or if the
// ranks' metrics return different numbers of sums. UsageError on this rank alone for a loader whose
// enforce_ordering is off, since padding must come last, for a batch without tensors or with
// different numbers of samples, and for a metric that changes its number of sums between batches.
template <class Model, class Loader, class Metric>
Evaluation evaluate(Model&& model, Loader& loader, const DistributedSampler& sampler,
                    GroupArgument group, Metric&& metric, const EvaluateOptions& options = {}) {
  static_assert(
      requires { loader.begin(); },
      "an evaluation takes a range of batches: *loader, if loader is what "
      "torch::data::make_data_loader() returned");
  const CallScope scope(CallOrigin::evaluate);
  if constexpr (requires { loader.options().enforce_ordering; }) {
    detail::require_order(loader.options().enforce_ordering, group.get());
  }
  torch::nn::Module* const module = detail::module_in(model);
  if (module != nullptr) share_buffers(*module, group, options.buffers);
  const detail::EvaluationMode mode(module);
  detail::EvaluatedBatches batches(sampler, group.get(), detail::device_of(module));
  for (const auto& batch : loader) {
    static_assert(
        requires {
          batch.data;
          batch.target;
        },
        "a batch has no data and target: map the data set with "
        "torch::data::transforms::Stack<>()");
    auto data = batch.data;
    auto target = batch.target;
    c10::SmallVector<at::Tensor*, 4> tensors;
    const auto note = [&](at::Tensor& tensor) { tensors.push_back(&tensor); };
    for_each_tensor(data, note);
    for_each_tensor(target, note);
    if (batches.take(tensors)) batches.add(metric(detail::output_of(model, data), target));
  }
  return batches.over_ranks();
}

// The fraction of the samples whose greatest output is at the target, from 0 to 1. The model
// returns {samples, classes}; targets are {samples}, of an integer type. Otherwise as evaluate().
template <class Model, class Loader>
double accuracy(Model&& model, Loader& loader, const DistributedSampler& sampler,
                GroupArgument group, const EvaluateOptions& options = {}) {
  const CallScope scope(CallOrigin::accuracy);
  const auto right = [&](const at::Tensor& output, const at::Tensor& target) {
    return detail::count_right(output, target, group.get());
  };
  return evaluate(model, loader, sampler, group, right, options).mean();
}

}  // namespace lockstep
