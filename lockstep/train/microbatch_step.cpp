// SPDX-License-Identifier: BSD-3-Clause
// Computes microbatches, and sums gradients that are copied from `.grad` one after another.
#include "lockstep/train/microbatch_step.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/strides.h>
#include <fmt/format.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/rnn.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/error.h"
#include "lockstep/core/trace_span.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/kept_state.h"
#include "lockstep/parallel/microbatch.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/train/option_checks.h"

namespace lockstep {

struct MicrobatchStep::Worker {
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

// The part of a flat tensor that has the shape of the parameter, as a tensor that autograd does not
// know to be a view: optimizer.zero_grad() detaches gradients in place, which it refuses for views.
at::Tensor part_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::int64_t start = flat.storage_offset() + offset;
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), start);
  }
  return flat.as_strided(parameter.sizes(), c10::contiguous_strides(parameter.sizes()), start);
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

MicrobatchStep::MicrobatchStep(const TrainerOptions& options, ProcessGroup& group,
                               std::shared_ptr<torch::nn::Module> module,
                               std::shared_ptr<DistributedDataParallelBase> model,
                               std::shared_ptr<DataParallelBase> replicas)
    : options_(options),
      group_(group),
      module_(std::move(module)),
      model_(std::move(model)),
      replicas_(std::move(replicas)),
      tree_(options.microbatches),
      runs_of_ranks_(even_runs(options.microbatches, group.size())) {
  refuse_norms_over_ranks_of(*module_, trainer_on(group_));
  shares_generator_ = replicas_ || (group_.size() > 1 && group_.backend() == "thread");
  if (shares_generator_) refuse_shared_random_numbers(*module_, trainer_on(group_));
  if (options_.balance_load && group_.size() > 1 && options_.microbatches > group_.size()) {
    meter_.emplace();
  }
}

MicrobatchStep::~MicrobatchStep() = default;

const MicrobatchPlan& MicrobatchStep::plan_for(const EpochSampler* sampler,
                                               std::optional<std::int64_t> size) {
  if (sampler == nullptr || !size) {
    throw UsageError(trainer_on(group_),
                     sampler == nullptr
                         ? "microbatches are dealt by the sampler, and fit() got none"
                         : "this range does not tell the size of its batches, which is that of a "
                           "microbatch",
                     "give fit() the .sampler of a MemoryLoader, a DataLoader or one of libtorch's "
                     "loaders");
  }
  plan_ = {.microbatches = options_.microbatches,
           .size = *size,
           .run = runs_of_ranks_[static_cast<std::size_t>(group_.rank())]};
  return plan_;
}

void MicrobatchStep::renew() {
  constexpr std::int64_t kAligned = 16;  // elements: parameters do not share cache lines
  layout_ = {};
  buffers_ = defined_buffers(*module_);
  workers_.clear();
  std::int64_t end = 0;
  for (const auto& [name, parameter] : distinct_named_parameters(*module_)) {
    if (!parameter.requires_grad()) continue;
    const at::Tensor first = layout_.parameters.empty() ? parameter : layout_.parameters.front();
    if (!parameter.is_floating_point() || parameter.scalar_type() != first.scalar_type() ||
        parameter.device() != first.device()) {
      throw UsageError(
          trainer_on(group_),
          fmt::format("parameter {} is {} on {} and the first one {} on {}; with microbatches, "
                      "gradients are summed in one tensor",
                      name, c10::toString(parameter.scalar_type()), parameter.device().str(),
                      c10::toString(first.scalar_type()), first.device().str()),
          "give all trained parameters one floating type and one device");
    }
    layout_.parameters.push_back(parameter);
    layout_.offsets.push_back(end);
    end = (end + parameter.numel() + kAligned - 1) / kAligned * kAligned;
  }
  if (layout_.parameters.empty()) {
    throw UsageError(trainer_on(group_), "all parameters are frozen", "unfreeze one at least");
  }
  layout_.first_count = end;
  layout_.loss = end + static_cast<std::int64_t>(layout_.parameters.size());
  layout_.measured_ranks = meter_ ? group_.size() : 0;
  renew_memory();
}

void MicrobatchStep::renew_memory() {
  if (!memory_.empty() && memory_.size() >= tree_.most_subtrees(runs_of_ranks_) &&
      memory_.front().numel() == layout_.elements() &&
      memory_.front().scalar_type() == layout_.parameters.front().scalar_type()) {
    return;
  }
  memory_ = partial_memory(tree_, runs_of_ranks_, layout_.elements(),
                           layout_.parameters.front().options(), group_);
}

void MicrobatchStep::require_same_parameters() const {
  std::size_t trained = 0;
  for (const auto& [name, parameter] : distinct_named_parameters(*module_)) {
    if (!parameter.requires_grad()) continue;
    const bool is_known =
        trained < layout_.parameters.size() && layout_.parameters[trained].is_same(parameter);
    if (!is_known) {
      throw UsageError(trainer_on(group_),
                       fmt::format("parameter {}, or one before it, was frozen, unfrozen or "
                                   "replaced within an epoch",
                                   name),
                       "do so between epochs, in FitOptions::begin_epoch");
    }
    ++trained;
  }
  if (trained == layout_.parameters.size()) return;
  throw UsageError(trainer_on(group_),
                   fmt::format("{} of {} trained parameters were frozen within an epoch",
                               layout_.parameters.size() - trained, layout_.parameters.size()),
                   "do so between epochs, in FitOptions::begin_epoch");
}

// Without replicas, the only worker is the module itself.
void MicrobatchStep::update_workers() {
  if (!replicas_ && !workers_.empty()) return;
  std::vector<DataParallelBase::WholeReplica> modules;
  if (replicas_) {
    modules = replicas_->whole_replicas();
    runs_of_workers_ = even_runs(options_.microbatches, static_cast<int>(modules.size()));
  } else {
    modules.push_back({module_.get(), distinct_parameters(*module_)});
    runs_of_workers_ = {plan_.run};
  }
  const at::Tensor& any = layout_.parameters.front();
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (i == workers_.size()) {
      workers_.push_back(
          Worker{{}, nullptr, {}, {}, TreeSum(tree_, layout_.elements(), any.options(), memory_)});
    }
    Worker& worker = workers_[i];
    worker.run = runs_of_workers_[i];
    worker.module = modules[i].module;
    worker.buffers = defined_buffers(*worker.module);
    worker.parameters = std::move(modules[i].parameters);
    std::erase_if(worker.parameters,
                  [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  }
}

void MicrobatchStep::begin(std::int64_t seed, std::int64_t step, std::int64_t samples) {
  seed_ = seed;
  step_ = step;
  samples_ = samples;
  own_samples_ = 0;
  planned_ = 0;
  added_ = 0;
  kept_.clear();
  require_same_parameters();
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
  for (const at::Tensor& parameter : layout_.parameters) parameter.mutable_grad().reset();
  first_buffers_ = copies_of(buffers_);
  buffers_after_0_.clear();
  is_open_ = true;
}

// The microbatches that have samples come first in every run.
void MicrobatchStep::add(std::function<at::Tensor()> loss, std::int64_t samples) {
  const std::int64_t index = plan_.run.begin + static_cast<std::int64_t>(added_);
  const std::int64_t expected = is_complete() ? 0 : plan_.size_of(index, samples_);
  if (samples != expected) {
    throw UsageError(
        trainer_on(group_),
        fmt::format("microbatch {} of {} has {} samples, but its batch {}", index,
                    options_.microbatches, expected, samples),
        "make the loader with the sampler that fit() gets, and let it neither drop nor "
        "merge batches");
  }
  ++added_;
  if (replicas_) {
    kept_.push_back(std::move(loss));
    return;
  }
  if (meter_) meter_->begin(LoadMeter::Activity::computing);
  compute(workers_.front(), loss);
  if (meter_) meter_->begin(LoadMeter::Activity::other);
}

void MicrobatchStep::begin_loop() {
  if (meter_) meter_->forget_step();
}

void MicrobatchStep::set_waiting(bool waits) {
  if (meter_) meter_->begin(waits ? LoadMeter::Activity::data : LoadMeter::Activity::other);
}

void MicrobatchStep::compute(Worker& worker, const std::function<at::Tensor()>& loss) {
  const Microbatch microbatch{.seed = seed_,
                              .step = step_,
                              .index = worker.sum.next(),
                              .trained = module_.get(),
                              .module = worker.module};
  const at::Device device = layout_.parameters.front().device();
  if (std::exchange(worker.has_computed, true)) copy_all(worker.buffers, first_buffers_);
  std::optional<KeptRandomNumbers> kept;
  if (!shares_generator_) {
    kept.emplace(std::vector{device});
    key_default_generators(microbatch.key(0), device);
  }
  const MicrobatchScope scope(microbatch);
  // Gradients stay on this rank; the wrapper would take them for a mistake.
  std::optional<NoSync> no_sync;
  if (model_) no_sync.emplace(model_->no_sync());
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
  if (is_mean()) weighted = weighted * plan_.size_of(microbatch.index, samples_);
  weighted.backward();
  worker.sum.add(
      [&](const at::Tensor& to, bool adds) { add_gradients(worker, weighted.detach(), to, adds); });
  if (microbatch.index == 0 && worker.planned > 1) {
    buffers_after_0_ = copies_of(worker.buffers);
  }
}

// An undefined gradient counts as +0, which is added too: -0 then becomes +0 on every rank.
void MicrobatchStep::add_gradients(const Worker& worker, const at::Tensor& loss,
                                   const at::Tensor& to, bool adds) const {
  const auto put = [&](const at::Tensor& place, const at::Tensor& value) {
    if (value.defined()) {
      adds ? place.add_(value) : place.copy_(value);
    } else {
      adds ? place.add_(0) : place.zero_();
    }
  };
  at::Tensor counts = at::zeros({static_cast<std::int64_t>(layout_.parameters.size())}, at::kFloat);
  auto* const count = counts.data_ptr<float>();
  for (std::size_t i = 0; i < worker.parameters.size(); ++i) {
    const at::Tensor& parameter = worker.parameters[i];
    at::Tensor& gradient = parameter.mutable_grad();
    if (gradient.defined() && gradient.layout() != at::kStrided) {
      throw UsageError(trainer_on(group_),
                       fmt::format("parameter {} of {} has a sparse gradient, which microbatches "
                                   "cannot sum",
                                   i, worker.parameters.size()),
                       "make the layer without the option sparse");
    }
    count[i] = gradient.defined() ? 1 : 0;
    put(part_like(to, layout_.offsets[i], parameter), gradient);
    gradient.reset();
  }
  put(to.narrow(0, layout_.first_count, counts.numel()), counts.to(to.options()));
  put(to.narrow(0, layout_.loss, 1), loss.defined() ? loss.reshape({1}) : loss);
}

// Returns this rank's load, with that of the present step: only whole global batches count, whose
// microbatches are all of one size.
RankLoad MicrobatchStep::load_of_step(const at::Tensor& partial) {
  if (!partial.device().is_cpu()) {
    meter_->begin(LoadMeter::Activity::computing);
    partial[layout_.loss].item<double>();  // waits for the device
  }
  meter_->begin(LoadMeter::Activity::other);
  if (samples_ == plan_.global_batch_size()) {
    meter_->end_microbatches(planned_);
  } else {
    meter_->forget_step();
  }
  return meter_->load();
}

at::Tensor MicrobatchStep::sum_gradients(bool asks_to_leave) {
  std::vector<std::vector<at::Tensor>> partials;
  for (Worker& worker : workers_) {
    while (worker.sum.next() < worker.run.end) {
      worker.sum.add([&](const at::Tensor& to, bool adds) { add_gradients(worker, {}, to, adds); });
    }
    partials.push_back(worker.sum.partials());
    for (const at::Tensor& partial : partials.back()) {
      partial.narrow(0, layout_.leaving(), layout_.elements() - layout_.leaving()).zero_();
    }
  }
  const at::Tensor& first = partials.front().front();
  if (asks_to_leave) first[layout_.leaving()].fill_(1);
  if (meter_) {
    const RankLoad load = load_of_step(first);
    first.narrow(0, layout_.load_of(group_.rank()), GradientLayout::kNumbersOfLoad)
        .copy_(at::tensor({load.computing, load.data, load.exchange}));
    meter_->begin(LoadMeter::Activity::exchange);
  }
  const double scale = is_mean() ? 1.0 / static_cast<double>(samples_) : 1;
  if (group_.size() == 1) return sum_of_runs(partials, tree_, runs_of_workers_, scale);
  return tree_all_reduce(partials.front(), tree_, runs_of_ranks_, group_, scale, memory_);
}

void MicrobatchStep::set_gradients(const at::Tensor& sum) {
  const at::Tensor counts =
      sum.narrow(0, layout_.first_count, layout_.elements() - layout_.first_count)
          .to(at::kCPU, at::kFloat)
          .contiguous();
  const auto* const count = counts.data_ptr<float>();
  for (std::size_t i = 0; i < layout_.parameters.size(); ++i) {
    const at::Tensor& parameter = layout_.parameters[i];
    if (count[i] > 0) parameter.mutable_grad() = part_like(sum, layout_.offsets[i], parameter);
  }
  all_leave_ = count[layout_.leaving() - layout_.first_count] > 0;
  if (meter_ && meter_->is_due()) {
    meter_->clear();
    loads_ = loads_in(count);
    better_runs_ = better_runs(runs_of_ranks_, loads_).value_or(std::vector<LeafRange>());
  }
}

// The loads were divided by the samples, as the gradients.
std::vector<RankLoad> MicrobatchStep::loads_in(const float* counts) const {
  const double scale = is_mean() ? static_cast<double>(samples_) : 1;
  std::vector<RankLoad> loads;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const float* const numbers = counts + (layout_.load_of(rank) - layout_.first_count);
    loads.push_back({.computing = numbers[0] * scale,
                     .data = numbers[1] * scale,
                     .exchange = numbers[2] * scale});
  }
  return loads;
}

std::optional<std::string> MicrobatchStep::change_shares() {
  if (better_runs_.empty()) return std::nullopt;
  const std::vector<LeafRange> before =
      std::exchange(runs_of_ranks_, std::exchange(better_runs_, {}));
  try {
    renew_memory();
  } catch (const BackendError&) {
    // There is not enough memory, which every rank is told. A step with these shares works.
    runs_of_ranks_ = before;
    return std::nullopt;
  }
  workers_.clear();
  return load_text(runs_of_ranks_, loads_);
}

void MicrobatchStep::share_buffers() {
  if (buffers_.empty()) return;
  if (!buffers_after_0_.empty()) copy_all(buffers_, buffers_after_0_);
  if (group_.size() > 1) group_.broadcast(buffers_, /*root=*/0).wait();
}

void MicrobatchStep::abandon() {
  if (meter_) meter_->forget_step();
  added_ = planned_;
  if (std::exchange(is_open_, false)) copy_all(buffers_, first_buffers_);
}

at::Tensor MicrobatchStep::finish(bool asks_to_leave) {
  if (replicas_) {
    replicas_->run_on_replicas("the microbatches", [&](int replica) {
      Worker& worker = workers_[static_cast<std::size_t>(replica)];
      for (std::int64_t leaf = worker.run.begin; leaf < worker.run.end; ++leaf) {
        const auto number = static_cast<std::size_t>(leaf);
        if (number < kept_.size()) compute(worker, kept_[number]);
      }
    });
    kept_.clear();
  }
  const at::Tensor sum = sum_gradients(asks_to_leave);
  share_buffers();
  if (meter_) {
    meter_->begin(LoadMeter::Activity::other);
    meter_->end_exchange();
  }
  set_gradients(sum);
  if (options_.check_finite) check_finite_gradients(*module_);
  return is_mean() ? sum[layout_.loss].clone() : sum[layout_.loss] / samples_;
}

}  // namespace lockstep
