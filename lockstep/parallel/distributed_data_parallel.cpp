// SPDX-License-Identifier: BSD-3-Clause
// The part of DistributedDataParallel that does not depend on the module's type.
#include "lockstep/parallel/distributed_data_parallel.h"

#include <memory>
#include <optional>
#include <ostream>
#include <string_view>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/backward_hooks.h"
#include "lockstep/parallel/backward_reduction.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/misuse_checks.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/parallel/one_copy.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/parallel/uneven_batches.h"

namespace lockstep {
namespace {

constexpr const char* kComponent = "DistributedDataParallel";

std::vector<NamedTensor> named(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& item : tensors) result.push_back({item.key(), item.value()});
  return result;
}

std::shared_ptr<ProcessGroup> checked(std::shared_ptr<ProcessGroup> group) {
  if (group == nullptr) {
    throw UsageError({.component = std::string(kComponent)}, "the group is null",
                     "call init_process_group()");
  }
  return group;
}

DistributedDataParallelOptions completed(DistributedDataParallelOptions options,
                                         const ProcessGroup& group) {
  options.one_copy_per_host = options.one_copy_per_host && group.size() > 1;
  // A rank that stores its share of the parameters once for all needs the means of that share only.
  if (options.one_copy_per_host) options.whole_gradients = false;
  return options;
}

// The device of device_ids, after checking that the parameters are there.
std::optional<at::Device> checked_input_device(const DistributedDataParallelOptions& options,
                                               const torch::nn::Module& module,
                                               const ProcessGroup& group) {
  if (options.device_ids.empty()) return {};
  if (options.device_ids.size() > 1) {
    throw UsageError(group.context(kComponent),
                     fmt::format("device_ids names {} devices, but a rank computes on one",
                                 options.device_ids.size()),
                     "start a rank for each device, or leave device_ids empty for a module that "
                     "spreads itself over several");
  }
  const at::Device device = options.device_ids.front();
  for (const auto& [name, parameter] : distinct_named_parameters(module)) {
    const at::Device actual = parameter.device();
    const bool same_index = !device.has_index() || device.index() == actual.index() ||
                            (actual.is_cpu() && device.index() == 0);
    if (actual.type() != device.type() || !same_index) {
      throw UsageError(group.context(kComponent),
                       fmt::format("device_ids says {}, but parameter {} is on {}", device.str(),
                                   name, actual.str()),
                       "move the module there before wrapping it, or leave device_ids empty");
    }
  }
  return device;
}

std::vector<NamedTensor> buffers_of(const torch::nn::Module& module) {
  return each_tensor_once(named(module.named_buffers()));
}

// Why a buffer cannot be broadcast; empty if it can be.
std::string broadcast_fault(const at::Tensor& buffer) {
  if (buffer.is_meta()) return "is on the device meta and has no elements";
  if (buffer.layout() != at::kStrided) return "is sparse, and only dense tensors can be broadcast";
  return "";
}

// All of a tensor's elements: along an expanded dimension there is one for all indices.
at::Tensor without_expansion(at::Tensor tensor) {
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.stride(i) == 0 && tensor.size(i) > 1) tensor = tensor.narrow(i, 0, 1);
  }
  return tensor;
}

// Sizes and types of all buffers, and the contents of those that no rank gets from another.
std::vector<std::string> lines_of(const std::vector<NamedTensor>& buffers) {
  std::vector<std::string> lines = describe("buffer", buffers);
  for (const auto& [name, buffer] : buffers) {
    if (broadcast_fault(buffer).empty() || buffer.is_meta()) continue;
    lines.push_back(
        fmt::format("buffer {}: elements with the hash {:x}", name, tensor_hash(buffer)));
  }
  return lines;
}

void require_dense(const std::vector<NamedTensor>& buffers, const ProcessGroup& group) {
  for (const auto& [name, buffer] : buffers) {
    const std::string fault = broadcast_fault(buffer);
    if (fault.empty()) continue;
    throw UsageError(group.context(kComponent), fmt::format("buffer {} {}", name, fault),
                     "set .broadcast_buffers = false, and build the buffer alike on every rank, or "
                     "register a dense one");
  }
}

// Without a group, a SyncBatchNorm would train as a BatchNorm on each rank.
void require_groups_of_norms(const torch::nn::Module& module, const ProcessGroup& group) {
  module.apply([&](const std::string& name, const torch::nn::Module& submodule) {
    const auto* norm = submodule.as<SyncBatchNorm>();
    if (!norm || norm->group()) return;
    throw UsageError(
        group.context(kComponent), fmt::format("SyncBatchNorm {} has no group", name),
        "before you wrap the net, call convert_sync_batchnorm(net, group), which gives "
        "the group to all of them");
  });
}

// Ranks that are threads draw from one generator.
std::unique_ptr<FirstDraw> first_draw(const torch::nn::Module& module, const ProcessGroup& group) {
  if (group.size() == 1 || group.backend() == "thread") return {};
  return std::make_unique<FirstDraw>(module.parameters().front().device());
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(
    std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
    const DistributedDataParallelOptions& options)
    : ParallelModule(std::string(kComponent), std::move(module)),
      group_(checked(std::move(group))),
      options_(completed(options, *group_)),
      input_device_(checked_input_device(options_, inner(), *group_)),
      reducer_(distinct_named_parameters(inner()), group_, options_),
      // All ranks build the same module: one of them warns.
      known_parameters_(group_->rank() == 0 ? std::make_unique<KnownParameters>(
                                                  inner(), group_->context(kComponent))
                                            : nullptr),
      first_draw_(first_draw(inner(), *group_)) {
  const CallScope scope(CallOrigin::wrapping);
  require_groups_of_norms(inner(), *group_);
  if (!options_.one_copy_per_host) {
    // An earlier wrapper may have left them in memory of several ranks.
    for (const at::Tensor& parameter : distinct_parameters(inner())) leave_one_copy(parameter);
  }
  if (group_->size() == 1) return;
  const std::vector<NamedTensor> buffers = buffers_of(inner());
  std::vector<std::string> lines = lines_of(buffers);
  lines.insert(lines.begin(), fmt::format("broadcast_buffers {}", options_.broadcast_buffers));
  check_agreement(*group_, kComponent, lines);
  if (options_.broadcast_buffers) require_dense(buffers, *group_);
  if (options_.one_copy_per_host) {
    one_copy_ = std::make_unique<OneCopy>(distinct_named_parameters(inner()), group_, kComponent);
  }
  broadcast_state(0);
  if (!options_.broadcast_buffers) return;
  for (const NamedTensor& buffer : buffers) buffers_.push_back(buffer.tensor);
}

DistributedDataParallelBase::~DistributedDataParallelBase() = default;

void DistributedDataParallelBase::register_comm_hook(CommHook hook) {
  if (one_copy_) {
    throw UsageError(group_->context(kComponent),
                     "communication hooks reduce gradients between copies of the parameters, and "
                     "with one_copy_per_host the ranks have one copy",
                     "leave out the hook, or one_copy_per_host");
  }
  reducer_.register_comm_hook(std::move(hook));
}

void DistributedDataParallelBase::change_parameters(const std::function<void()>& function) {
  if (one_copy_) return one_copy_->change(function);
  const at::NoGradGuard no_grad;
  function();
}

std::uint64_t DistributedDataParallelBase::before_forward() {
  const CallScope scope(CallOrigin::forward);
  BackwardReduction& reduction = *reducer_.reduction();
  reduction.check();
  if (one_copy_) one_copy_->check();
  if (at::GradMode::is_enabled() && reducer_.synchronizes()) {
    if (known_parameters_) known_parameters_->warn_of_new();
    // The wrapped module's own mode counts: evaluating it on one rank must not block.
    if (!buffers_.empty() && inner().is_training()) {
      broadcast_buffers(reduction.group().announce(JoinStep::broadcast_buffers).root);
    }
    if (first_draw_) first_draw_->before_forward();
  }
  return next_node_number();
}

JoinStep DistributedDataParallelBase::follow_step() {
  const CallScope scope(CallOrigin::join);
  BackwardReduction& reduction = *reducer_.reduction();
  const AnnouncedStep next = reduction.group().announce(JoinStep::none);
  if (next.step == JoinStep::broadcast_buffers) broadcast_buffers(next.root);
  if (next.step == JoinStep::reduce_gradients) reduction.follow_backward();
  return next.step;
}

void DistributedDataParallelBase::broadcast_buffers(int root) {
  // Broadcasts through tensors with their own version counters: a graph that has saved a buffer,
  // such as the graph of a second forward before backward, must not take this for a change of its
  // inputs.
  std::vector<at::Tensor> aliases;
  aliases.reserve(buffers_.size());
  for (const at::Tensor& buffer : buffers_) {
    aliases.push_back(without_expansion(buffer.variable_data()));
  }
  try {
    group_->broadcast(aliases, root).wait();
  } catch (const Error&) {
    ErrorContext context = group_->context(kComponent);
    context.operation = "broadcasting buffers";
    if (reducer_.reduction()->group().announces_steps()) rethrow_within(context);
    rethrow_within_batches(context);
  }
}

void DistributedDataParallelBase::broadcast_state(int root) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& parameter : distinct_parameters(inner())) {
    if (!one_copy_) tensors.push_back(parameter.detach());
  }
  for (const auto& [name, buffer] : buffers_of(inner())) {
    if (broadcast_fault(buffer).empty()) tensors.push_back(without_expansion(buffer.detach()));
  }
  if (!tensors.empty()) group_->broadcast(tensors, root).wait();
}

void DistributedDataParallelBase::after_forward(c10::ArrayRef<at::Tensor*> outputs,
                                                std::uint64_t before_forward) {
  if (options_.output_device) {
    for (at::Tensor* output : outputs) {
      if (output->defined()) *output = output->to(*options_.output_device, /*non_blocking=*/true);
    }
  }
  const bool trains = inner().is_training() && at::GradMode::is_enabled();
  if (first_draw_ && trains && reducer_.synchronizes()) {
    reducer_.reduction()->set_first_draw(first_draw_->after_forward());
    first_draw_.reset();
  }
  reducer_.reduction()->watch({outputs.data(), outputs.size()}, before_forward);
}

std::shared_ptr<DividedReduction> DistributedDataParallelBase::divided_reduction() const {
  const std::shared_ptr<BackwardReduction>& reduction = reducer_.reduction();
  return {reduction, &reduction->divided()};
}

std::shared_ptr<ProcessGroup> DistributedDataParallelBase::ranks_with_one_copy() const {
  return one_copy_ ? one_copy_->host() : nullptr;
}

void DistributedDataParallelBase::pretty_print(std::ostream& stream) const {
  stream << "lockstep::DistributedDataParallel(rank " << group_->rank() << " of " << group_->size()
         << ")";
}

}  // namespace lockstep
