// SPDX-License-Identifier: BSD-3-Clause
// Computes microbatches by the module or by its replicas.
#include "lockstep/train/microbatch_loop.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/kept_state.h"
#include "lockstep/parallel/microbatch.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {

struct MicrobatchLoop::Worker {
  LeafRange run;
  torch::nn::Module* module;
  std::vector<at::Tensor> parameters;  // in the order of the layout
  std::vector<at::Tensor> buffers;
  TreeSum sum;
  // In this step: the number of microbatches that have samples, and whether one was computed.
  std::size_t planned = 0;
  bool has_computed = false;
};

namespace {

std::vector<at::Tensor> defined_buffers(const torch::nn::Module& module) {
  std::vector<at::Tensor> buffers = module.buffers();
  std::erase_if(buffers, [](const at::Tensor& buffer) { return !buffer.defined(); });
  return buffers;
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

void copy_all(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

template <class Layer>
bool has_dropout(const torch::nn::Module& module) {
  const auto* const layer = module.as<Layer>();
  return layer != nullptr && layer->options.dropout() > 0;
}

bool draws_random_numbers(const torch::nn::Module& module) {
  return module.as<torch::nn::DropoutImpl>() != nullptr ||
         module.as<torch::nn::Dropout2dImpl>() != nullptr ||
         module.as<torch::nn::Dropout3dImpl>() != nullptr ||
         module.as<torch::nn::AlphaDropoutImpl>() != nullptr ||
         module.as<torch::nn::FeatureAlphaDropoutImpl>() != nullptr ||
         module.as<torch::nn::RReLUImpl>() != nullptr || has_dropout<torch::nn::LSTMImpl>(module) ||
         has_dropout<torch::nn::GRUImpl>(module) || has_dropout<torch::nn::RNNImpl>(module) ||
         has_dropout<torch::nn::MultiheadAttentionImpl>(module);
}

// Draws from the default generator by replicas, or ranks that are threads, depend on timing.
void refuse_shared_random_numbers(const torch::nn::Module& module, const ErrorContext& context) {
  module.apply([&](const std::string& name, const torch::nn::Module& submodule) {
    if (!draws_random_numbers(submodule)) return;
    throw UsageError(context,
                     fmt::format("{} of {} draws from PyTorch's default generator, which all "
                                 "threads share, so that its draws depend on timing",
                                 submodule.name(), name.empty() ? "the module" : name),
                     "use lockstep::Dropout");
  });
}

void refuse_norms_over_ranks_of(const torch::nn::Module& module, const ErrorContext& context) {
  module.apply([&](const std::string& name, const torch::nn::Module& submodule) {
    const auto* const norm = submodule.as<SyncBatchNorm>();
    if (norm == nullptr || !norm->group() || norm->group()->size() == 1) return;
    throw UsageError(context,
                     fmt::format("SyncBatchNorm {} normalizes over ranks, but with microbatches a "
                                 "result does not depend on the ranks",
                                 name),
                     "use BatchNorm, which normalizes over a microbatch");
  });
}

// The next draws from the default generators belong to the microbatch with this key.
void key_default_generators(std::uint64_t key, at::Device device) {
  const auto seed = [&](at::Generator generator) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(key);
  };
  seed(at::detail::getDefaultCPUGenerator());
  if (!device.is_cpu()) seed(at::globalContext().defaultGenerator(device));
}

}  // namespace

MicrobatchLoop::MicrobatchLoop(const TrainerOptions& options, ProcessGroup& group,
                               const GradientLayout& layout, const MicrobatchShares& shares,
                               ComputingModel model)
    : options_(options),
      group_(group),
      trainer_(trainer_on(group)),
      layout_(layout),
      shares_(shares),
      model_(std::move(model)),
      shares_generator_(model_.replicas || (group.size() > 1 && group.backend() == "thread")) {
  refuse_norms_over_ranks_of(*model_.module, trainer_);
  if (shares_generator_) refuse_shared_random_numbers(*model_.module, trainer_);
}

MicrobatchLoop::~MicrobatchLoop() = default;

void MicrobatchLoop::renew() {
  buffers_ = defined_buffers(*model_.module);
  workers_.clear();
}

// Without replicas, the only worker is the module itself.
void MicrobatchLoop::update_workers() {
  if (!model_.replicas && !workers_.empty()) return;
  std::vector<DataParallelBase::WholeReplica> modules;
  if (model_.replicas) {
    modules = model_.replicas->whole_replicas();
    runs_ = even_runs(options_.microbatches, static_cast<int>(modules.size()));
  } else {
    modules.push_back({model_.module.get(), distinct_parameters(*model_.module)});
    runs_ = {plan_.run};
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (i == workers_.size()) {
      workers_.push_back(
          Worker{{},
                 nullptr,
                 {},
                 {},
                 TreeSum(shares_.tree(), layout_.elements(), layout_.options(), shares_.memory())});
    }
    Worker& worker = workers_[i];
    worker.run = runs_[i];
    worker.module = modules[i].module;
    worker.buffers = defined_buffers(*worker.module);
    worker.parameters = std::move(modules[i].parameters);
    std::erase_if(worker.parameters,
                  [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  }
}

void MicrobatchLoop::begin(const MicrobatchPlan& plan, std::int64_t seed, std::int64_t step,
                           std::int64_t samples) {
  plan_ = plan;
  seed_ = seed;
  step_ = step;
  samples_ = samples;
  own_samples_ = 0;
  planned_ = 0;
  added_ = 0;
  kept_.clear();
  layout_.require_same_parameters(*model_.module, trainer_);
  update_workers();
  for (Worker& worker : workers_) {
    worker.sum.begin(worker.run);
    worker.has_computed = false;
    for (const at::Tensor& parameter : worker.parameters) parameter.mutable_grad().reset();
    std::size_t batches = 0;
    for (std::int64_t leaf = worker.run.begin; leaf < worker.run.end; ++leaf) {
      if (plan_.size_of(leaf, samples_) > 0) ++batches;
    }
    planned_ += batches;
    worker.planned = batches;
    own_samples_ +=
        plan_.begin_of(worker.run.end, samples_) - plan_.begin_of(worker.run.begin, samples_);
  }
  for (const at::Tensor& parameter : layout_.parameters()) parameter.mutable_grad().reset();
  first_buffers_ = copies_of(buffers_);
  buffers_after_0_.clear();
  is_open_ = true;
}

// The microbatches that have samples come first in every run.
void MicrobatchLoop::add(std::function<at::Tensor()> loss, std::int64_t samples) {
  const std::int64_t index = plan_.run.begin + static_cast<std::int64_t>(added_);
  const std::int64_t expected = is_complete() ? 0 : plan_.size_of(index, samples_);
  if (samples != expected) {
    throw UsageError(
        trainer_,
        fmt::format("microbatch {} of {} has {} samples, but its batch {}", index,
                    options_.microbatches, expected, samples),
        "make the loader with the sampler that fit() gets, and let it neither drop nor "
        "merge batches");
  }
  ++added_;
  if (model_.replicas) {
    kept_.push_back(std::move(loss));
  } else {
    compute(workers_.front(), loss);
  }
}

void MicrobatchLoop::compute(Worker& worker, const std::function<at::Tensor()>& loss) {
  const Microbatch microbatch{.seed = seed_,
                              .step = step_,
                              .index = worker.sum.next(),
                              .trained = model_.module.get(),
                              .module = worker.module};
  const at::Device device = layout_.device();
  if (std::exchange(worker.has_computed, true)) copy_all(worker.buffers, first_buffers_);
  std::optional<KeptRandomNumbers> kept;
  if (!shares_generator_) {
    kept.emplace(std::vector{device});
    key_default_generators(microbatch.key(0), device);
  }
  const MicrobatchScope scope(microbatch);
  // Gradients stay on this rank; the wrapper would take them for a mistake.
  std::optional<NoSync> no_sync;
  if (model_.wrapper) no_sync.emplace(model_.wrapper->no_sync());
  at::Tensor value;
  {
    std::optional<Autocast> autocast;
    if (options_.amp) autocast.emplace(device, options_.amp);
    const TracedSpan span("forward");
    value = loss();
  }
  const TracedSpan span("backward");
  // The mean over all samples is the sum of these, divided at the root.
  at::Tensor weighted = value.reshape({});
  if (options_.loss_reduction == LossReduction::mean) {
    weighted = weighted * plan_.size_of(microbatch.index, samples_);
  }
  weighted.backward();
  worker.sum.add([&](const at::Tensor& to, bool adds) {
    layout_.take_gradients(worker.parameters, weighted.detach(), to, adds, trainer_);
  });
  if (microbatch.index == 0 && worker.planned > 1) {
    buffers_after_0_ = copies_of(worker.buffers);
  }
}

std::vector<std::vector<at::Tensor>> MicrobatchLoop::partial_sums() {
  if (model_.replicas) {
    model_.replicas->run_on_replicas("the microbatches", [&](int replica) {
      Worker& worker = workers_[static_cast<std::size_t>(replica)];
      for (std::int64_t leaf = worker.run.begin; leaf < worker.run.end; ++leaf) {
        const auto number = static_cast<std::size_t>(leaf);
        if (number < kept_.size()) compute(worker, kept_[number]);
      }
    });
    kept_.clear();
  }
  std::vector<std::vector<at::Tensor>> partials;
  for (Worker& worker : workers_) {
    while (worker.sum.next() < worker.run.end) {  // microbatches without samples
      worker.sum.add([&](const at::Tensor& to, bool adds) {
        layout_.take_gradients(worker.parameters, /*loss=*/{}, to, adds, trainer_);
      });
    }
    partials.push_back(worker.sum.partials());
  }
  return partials;
}

void MicrobatchLoop::share_buffers() {
  if (!buffers_.empty()) {
    if (!buffers_after_0_.empty()) copy_all(buffers_, buffers_after_0_);
    if (group_.size() > 1) group_.broadcast(buffers_, /*root=*/0).wait();
  }
}

void MicrobatchLoop::abandon() {
  added_ = planned_;
  if (std::exchange(is_open_, false)) copy_all(buffers_, first_buffers_);
}

}  // namespace lockstep
