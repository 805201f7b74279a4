// SPDX-License-Identifier: BSD-3-Clause
// The module, and the conversion of BatchNorms to it.
#include "lockstep/parallel/sync_batch_norm.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/normalize_over_ranks.h"
#include "lockstep/parallel/parallel_module.h"

namespace lockstep {
namespace {

using torch::nn::Module;

// Moves running statistics towards the statistics of a batch.
void follow(at::Tensor& running, const at::Tensor& batch, double momentum) {
  running.mul_(1 - momentum).add_(batch.to(running.scalar_type()), momentum);
}

template <class BatchNorm>
bool is_exactly(const Module& module) {
  return typeid(module) == typeid(typename BatchNorm::ContainedType);
}

bool is_batch_norm(const Module& module) {
  if (const auto* script = module.as<ScriptModule>()) {
    const auto type = script->script().type()->name();
    const std::string name = type ? type->name() : "";
    return name == "BatchNorm1d" || name == "BatchNorm2d" || name == "BatchNorm3d";
  }
  return module.as<torch::nn::BatchNorm1d>() || module.as<torch::nn::BatchNorm2d>() ||
         module.as<torch::nn::BatchNorm3d>();
}

// Whether only the parent calls the child, as a module of any type.
bool is_held_by_sequential(const Module& parent, const std::shared_ptr<Module>& child) {
  const auto* sequential = parent.as<torch::nn::Sequential>();
  return sequential && std::any_of(sequential->begin(), sequential->end(),
                                   [&](const auto& callable) { return callable.ptr() == child; });
}

// A BatchNorm of a net, and where it is.
struct FoundNorm {
  std::string path;
  Module& parent;
  std::string name;  // in the parent
  std::shared_ptr<Module> norm;
};

void find_norms(Module& parent, const std::string& prefix, std::vector<FoundNorm>& found) {
  for (const auto& item : parent.named_children()) {
    const std::shared_ptr<Module>& child = item.value();
    const std::string path = prefix + item.key();
    if (is_batch_norm(*child)) {
      found.push_back({path, parent, item.key(), child});
    } else {
      find_norms(*child, path + ".", found);
    }
  }
}

void refuse_norms_called_by_type(const Module& net, const std::vector<FoundNorm>& found,
                                 const ProcessGroup& group) {
  std::vector<std::string> refused;
  if (is_batch_norm(net)) refused.emplace_back("the net itself");
  for (const FoundNorm& found_norm : found) {
    const Module& norm = *found_norm.norm;
    const bool plain = is_exactly<torch::nn::BatchNorm1d>(norm) ||
                       is_exactly<torch::nn::BatchNorm2d>(norm) ||
                       is_exactly<torch::nn::BatchNorm3d>(norm);
    if (!plain || !is_held_by_sequential(found_norm.parent, found_norm.norm))
      refused.push_back(found_norm.path);
  }
  if (refused.empty()) return;
  throw UsageError(
      group.context("convert_sync_batchnorm"),
      fmt::format(
          "cannot replace {}: only what is in a torch::nn::Sequential can be replaced, since other "
          "C++ code calls a BatchNorm by its type. The net is unchanged",
          fmt::join(refused, ", ")),
      "declare such members as lockstep::SyncBatchNorm, which convert_sync_batchnorm gives the "
      "group");
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options,
                                     GroupArgument group)
    : options(norm_options), group_(group.shared()) {
  SyncBatchNormImpl::reset();
}

template <class BatchNormImpl>
SyncBatchNormImpl::SyncBatchNormImpl(InPlaceOf /*tag*/, const BatchNormImpl& norm)
    : options(norm.options) {
  const auto share_parameter = [&](const char* name, const at::Tensor& tensor) {
    return register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = share_parameter("weight", norm.weight);
  bias = share_parameter("bias", norm.bias);
  running_mean = register_buffer("running_mean", norm.running_mean);
  running_var = register_buffer("running_var", norm.running_var);
  num_batches_tracked = register_buffer("num_batches_tracked", norm.num_batches_tracked);
  train(norm.is_training());
}

std::shared_ptr<SyncBatchNormImpl> SyncBatchNormImpl::in_place_of(const Module& module) {
  const auto shared = [](const auto& norm) {
    return std::shared_ptr<SyncBatchNormImpl>(new SyncBatchNormImpl(InPlaceOf(), norm));
  };
  if (const auto* norm = module.as<torch::nn::BatchNorm1d>()) return shared(*norm);
  if (const auto* norm = module.as<torch::nn::BatchNorm2d>()) return shared(*norm);
  if (const auto* norm = module.as<torch::nn::BatchNorm3d>()) return shared(*norm);
  return nullptr;
}

void SyncBatchNormImpl::reset() {
  const std::int64_t channels = options.num_features();
  if (options.affine()) {
    weight = register_parameter("weight", torch::empty({channels}));
    bias = register_parameter("bias", torch::empty({channels}));
  } else {
    weight = register_parameter("weight", at::Tensor(), /*requires_grad=*/false);
    bias = register_parameter("bias", at::Tensor(), /*requires_grad=*/false);
  }
  const bool track = options.track_running_stats();
  running_mean = register_buffer("running_mean", track ? torch::zeros({channels}) : at::Tensor());
  running_var = register_buffer("running_var", track ? torch::ones({channels}) : at::Tensor());
  num_batches_tracked =
      register_buffer("num_batches_tracked", track ? torch::zeros({}, at::kLong) : at::Tensor());
  reset_parameters();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  torch::nn::init::ones_(weight);
  torch::nn::init::zeros_(bias);
}

void SyncBatchNormImpl::check(const at::Tensor& input) const {
  const ErrorContext context =
      group_ ? group_->context("SyncBatchNorm") : ErrorContext{.component = "SyncBatchNorm"};
  const std::int64_t channels = options.num_features();
  if (!input.defined() || input.dim() < 2 || input.size(1) != channels || channels == 0) {
    throw UsageError(
        context,
        fmt::format("the input {}, but num_features is {}",
                    input.defined() ? "has the sizes " + c10::str(input.sizes()) : "is undefined",
                    channels),
        fmt::format("give it the sizes {{N, {}, ...}}", channels));
  }
  // Ranks count the values of all of them. libtorch refuses them without a remedy.
  const bool is_alone = !group_ || group_->size() == 1;
  if (is_alone && is_training() && input.numel() == channels) {
    throw UsageError(
        context,
        fmt::format("Expected more than 1 value per channel when training, got 1: the "
                    "input has the sizes {}",
                    c10::str(input.sizes())),
        "use larger batches or images, leave out the batch of the last sample, or call "
        "net->eval()");
  }
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  const bool tracks = is_training() && options.track_running_stats();
  double momentum = options.momentum().value_or(0);
  if (tracks && !options.momentum()) momentum = 1 / (num_batches_tracked.item<double>() + 1);

  if (!is_training() || !group_ || group_->size() == 1) {
    namespace F = torch::nn::functional;
    at::Tensor output = F::batch_norm(input, running_mean, running_var,
                                      F::BatchNormFuncOptions()
                                          .weight(weight)
                                          .bias(bias)
                                          .training(is_training() || !options.track_running_stats())
                                          .momentum(momentum)
                                          .eps(options.eps()));
    if (tracks) num_batches_tracked.add_(1);
    return output;
  }
  NormalizedBatch batch = normalize_over_ranks(input, weight, bias, options.eps(), group_);
  if (tracks) {
    const at::NoGradGuard no_grad;
    const auto& [mean, var, count] = batch.statistics;
    follow(running_mean, mean, momentum);
    follow(running_var, var * count / (count - 1), momentum);
    num_batches_tracked.add_(1);  // a batch that was refused does not count
  }
  return batch.output;
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format(
      "lockstep::SyncBatchNorm({}, eps={}, momentum={}, affine={}, track_running_stats={})",
      options.num_features(), options.eps(),
      options.momentum() ? fmt::format("{}", *options.momentum()) : "None", options.affine(),
      options.track_running_stats());
}

void convert_sync_batchnorm(Module& net, GroupArgument argument) {
  const std::shared_ptr<ProcessGroup> group = argument.get().shared_from_this();
  std::vector<FoundNorm> found;
  find_norms(net, "", found);
  refuse_norms_called_by_type(net, found, *group);
  // What the net uses in several places stays one module.
  std::unordered_map<const Module*, std::shared_ptr<SyncBatchNormImpl>> replacements;
  for (const FoundNorm& found_norm : found) {
    auto& norm = replacements[found_norm.norm.get()];
    if (!norm) norm = SyncBatchNormImpl::in_place_of(*found_norm.norm);
    found_norm.parent.replace_module(found_norm.name, norm);
    for (torch::nn::AnyModule& callable : *found_norm.parent.as<torch::nn::Sequential>()) {
      if (callable.ptr() == found_norm.norm) callable = torch::nn::AnyModule(norm);
    }
  }
  net.apply([&](Module& module) {
    if (auto* norm = module.as<SyncBatchNorm>()) norm->group_ = group;
  });
}

}  // namespace lockstep
