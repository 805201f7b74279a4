// SPDX-License-Identifier: BSD-3-Clause
// Evaluates a model on a data set that the ranks share, and counts each sample once.
//
//   lockstep::DistributedSampler sampler(tests.size().value(), group, {.shuffle = false});
//   auto loader = torch::data::make_data_loader(tests.map(Stack<>()), sampler, 500);
//   double right = lockstep::accuracy(model, *loader, sampler, group);
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/SmallVector.h>
#include <torch/nn/module.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/parallel/for_each_tensor.h"

namespace lockstep {

// The same bits on every rank.
struct Evaluation {
  // What the metric returned, summed over all samples; one entry for each of its elements.
  std::vector<double> sums = {};
  // The size of the data set, unless the sampler drops a remainder.
  std::int64_t samples = 0;

  // The mean over the samples.
  double mean(std::size_t entry = 0) const { return sums.at(entry) / static_cast<double>(samples); }
};

namespace detail {

// Puts a module and its submodules into eval mode, and each back into its own mode. Gradients are
// off while it lives.
class EvaluationMode {
 public:
  // Null if the model is a function.
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

// This rank's batches of an evaluation, and what the metric said of them.
class EvaluatedBatches {
 public:
  EvaluatedBatches(const DistributedSampler& sampler, ProcessGroup& group);

  // Cuts padding off the tensors of a batch and moves them to the group's device. Returns whether
  // samples are left.
  bool take(c10::ArrayRef<at::Tensor*> tensors);
  void add(const at::Tensor& sums);
  // Collective.
  Evaluation over_ranks() const;

 private:
  ProcessGroup& group_;
  std::int64_t expected_;
  std::int64_t padding_starts_;
  std::int64_t loaded_ = 0;
  at::Tensor sums_;
};

// UsageError if batches may come in another order than the sampler's.
void require_order(bool ordered, const ProcessGroup& group);
// How many samples of a batch have their greatest output at their target.
at::Tensor count_right(const at::Tensor& output, const at::Tensor& target,
                       const ProcessGroup& group);

// A holder, or a pointer to a module.
template <class Model>
concept RefersToModule = requires(Model& model) {
  { *model } -> std::convertible_to<const torch::nn::Module&>;
};

// Null if the model is a function.
template <class Model>
torch::nn::Module* module_in(Model& model) {
  if constexpr (std::derived_from<Model, torch::nn::Module>) {
    return &model;
  } else if constexpr (RefersToModule<Model>) {
    return &*model;
  } else {
    return nullptr;
  }
}

template <class Model, class Input>
auto output_of(Model& model, const Input& input) {
  if constexpr (std::derived_from<Model, torch::nn::Module>) {
    return model.forward(input);
  } else if constexpr (RefersToModule<Model>) {
    return model->forward(input);
  } else {
    return model(input);
  }
}

}  // namespace detail

// Calls metric(model(data), target) for each batch, and adds up over all ranks' samples what it
// returns: a tensor with one or more sums over the batch, in a type that converts to double and
// with the same number of elements each time.
//
//   const auto sum_of_losses = [](const at::Tensor& output, const at::Tensor& target) {
//     return torch::cross_entropy_loss(output, target, {}, at::Reduction::Sum);
//   };
//   double loss = lockstep::evaluate(model, *loader, sampler, group, sum_of_losses).mean();
//
// The model is a module, a holder, a pointer to a module, a wrapper such as
// DistributedDataParallel, or a function, as for TorchScript. A module is put into eval mode, its
// submodules too; afterwards, also after an exception, each is in the mode that it had. A function
// sets no mode. Gradients are off.
//
// The loader is a MemoryLoader or a torch::data loader with stacked batches, made with a copy of
// this sampler; data and target are tensors or structures of tensors (for_each_tensor.h), with the
// samples in dimension 0. Batches are moved to the group's device. The model never sees padding.
//
// Collective: each rank runs its own batches, and all meet once at the end. Blocking. UsageError on
// every rank if a loader does not yield the sampler's samples (another sampler, or drop_last), if
// no rank has any, or if metrics return different numbers of sums; and for a loader whose
// enforce_ordering is off, since padding must come last.
template <class Model, class Loader, class Metric>
Evaluation evaluate(Model&& model, Loader& loader, const DistributedSampler& sampler,
                    GroupArgument group, Metric&& metric) {
  if constexpr (requires { loader.options().enforce_ordering; }) {
    detail::require_order(loader.options().enforce_ordering, group.get());
  }
  const detail::EvaluationMode mode(detail::module_in(model));
  detail::EvaluatedBatches batches(sampler, group.get());
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
                GroupArgument group) {
  const auto right = [&](const at::Tensor& output, const at::Tensor& target) {
    return detail::count_right(output, target, group.get());
  };
  return evaluate(model, loader, sampler, group, right).mean();
}

}  // namespace lockstep
