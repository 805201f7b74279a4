// SPDX-License-Identifier: BSD-3-Clause
// The part of DistributedDataParallel that does not depend on the module's type.
#include "lockstep/parallel/distributed_data_parallel.h"

#include <ostream>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/backward_entry.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/parallel/uneven_batches.h"

namespace lockstep {
namespace {

constexpr std::string_view kWho = "DistributedDataParallel";

std::vector<NamedTensor> named(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& item : tensors) result.push_back({item.key(), item.value()});
  return result;
}

std::shared_ptr<ProcessGroup> checked(std::shared_ptr<ProcessGroup> group) {
  if (!group)
    throw UsageError(
        "[DistributedDataParallel] the group is null; call "
        "init_process_group()");
  return group;
}

torch::nn::Module& checked(const std::shared_ptr<torch::nn::Module>& module) {
  if (!module) throw UsageError("[DistributedDataParallel] the module is empty");
  return *module;
}

// The device of device_ids, after checking that the parameters are there.
std::optional<at::Device> checked_input_device(const DistributedDataParallelOptions& options,
                                               const torch::nn::Module& module,
                                               const ProcessGroup& group) {
  if (options.device_ids.empty()) return {};
  const std::string where = fmt::format("[{}] rank {} of {}: ", kWho, group.rank(), group.size());
  if (options.device_ids.size() > 1) {
    throw UsageError(fmt::format(
        "{}device_ids names {} devices. A rank computes on one: start a rank for each device, or "
        "leave device_ids empty for a module that spreads itself over several",
        where, options.device_ids.size()));
  }
  const at::Device device = options.device_ids.front();
  for (const auto& parameter : module.named_parameters()) {
    const at::Device actual = parameter.value().device();
    const bool same_index = !device.has_index() || device.index() == actual.index() ||
                            (actual.is_cpu() && device.index() == 0);
    if (actual.type() != device.type() || !same_index) {
      throw UsageError(fmt::format(
          "{}device_ids says {}, but parameter {} is on {}. Move the module there before wrapping "
          "it, or leave device_ids empty",
          where, device.str(), parameter.key(), actual.str()));
    }
  }
  return device;
}

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module) {
  return named(module.named_parameters());
}

// Every rank starts from rank 0's parameters, including frozen ones, and buffers.
void broadcast_state(ProcessGroup& group, const torch::nn::Module& module) {
  const std::vector<NamedTensor> buffers = named(module.named_buffers());
  check_agreement(group, kWho, describe("buffer", buffers));
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& parameter : parameters_of(module)) {
    tensors.push_back(parameter.tensor.detach());
  }
  for (const NamedTensor& buffer : buffers) tensors.push_back(buffer.tensor.detach());
  if (!tensors.empty()) group.broadcast(tensors, 0).wait();
}

}  // namespace

DistributedDataParallelBase::DistributedDataParallelBase(
    std::shared_ptr<torch::nn::Module> module, std::shared_ptr<ProcessGroup> group,
    const DistributedDataParallelOptions& options)
    : torch::nn::Module("DistributedDataParallel"),
      group_(checked(std::move(group))),
      inner_(&checked(module)),
      options_(options),
      input_device_(checked_input_device(options_, *inner_, *group_)),
      reducer_(parameters_of(*inner_), group_, options_) {
  register_module("module", std::move(module));
  if (group_->size() == 1) return;
  broadcast_state(*group_, *inner_);
  if (options_.broadcast_buffers) buffers_ = inner_->buffers();
}

std::uint64_t DistributedDataParallelBase::before_forward() {
  reducer_.check();
  // The wrapped module's own mode counts: evaluating it on one rank must not block.
  if (!buffers_.empty() && inner_->is_training() && at::GradMode::is_enabled() &&
      reducer_.synchronizes()) {
    // Broadcasts through tensors with their own version counters: a graph that has saved a buffer,
    // such as that of a second forward before backward, must not take this for a change of its
    // inputs.
    std::vector<at::Tensor> aliases;
    aliases.reserve(buffers_.size());
    for (const at::Tensor& buffer : buffers_) aliases.push_back(buffer.variable_data());
    try {
      group_->broadcast(aliases, 0).wait();
    } catch (const Error&) {
      rethrow_with_hint_at_batches(fmt::format("[{}] rank {} of {}: broadcasting buffers: ", kWho,
                                               group_->rank(), group_->size()));
    }
  }
  return next_node_number();
}

void DistributedDataParallelBase::after_forward(c10::ArrayRef<at::Tensor*> outputs,
                                                std::uint64_t before_forward) {
  if (options_.output_device) {
    for (at::Tensor* output : outputs) {
      if (output->defined()) *output = output->to(*options_.output_device, /*non_blocking=*/true);
    }
  }
  reducer_.prepare_in_place({outputs.data(), outputs.size()}, before_forward);
}

void DistributedDataParallelBase::pretty_print(std::ostream& stream) const {
  stream << "lockstep::DistributedDataParallel(rank " << group_->rank() << " of " << group_->size()
         << ")";
}

}  // namespace lockstep
