// SPDX-License-Identifier: BSD-3-Clause
// The part of DataParallel that does not depend on the module's type.
#include "lockstep/parallel/data_parallel.h"

#include <algorithm>
#include <ostream>

#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/replica_workers.h"
#include "lockstep/parallel/replicas.h"
#include "lockstep/parallel/scatter.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

DataParallelOptions checked(DataParallelOptions options) {
  if (options.replicas < 0) {
    throw UsageError({.component = "DataParallel"}, fmt::format("replicas is {}", options.replicas),
                     "it must be 1 or more, or 0 for one per core");
  }
  if (options.replicas > 0 && !options.device_ids.empty()) {
    throw UsageError({.component = "DataParallel"}, "both device_ids and replicas are set",
                     "name the GPUs, or say how many replicas there are on CPU");
  }
  if (options.dim < 0) {
    throw UsageError({.component = "DataParallel"}, fmt::format("dim is {}", options.dim),
                     "it must be 0 or more, since tensors with different numbers of dimensions are "
                     "split along the same one");
  }
  return options;
}

std::vector<at::Device> with_indices(const std::vector<DeviceId>& ids) {
  std::vector<at::Device> devices;
  for (const DeviceId id : ids) devices.push_back(with_index(id));
  return devices;
}

std::vector<at::Device> there(std::vector<at::Device> devices) {
  for (const at::Device device : devices) {
    if (device.is_cpu()) continue;
    const int visible = device_count(device.type());
    if (device.index() < visible) continue;
    throw UsageError({.component = "DataParallel"},
                     fmt::format("device_ids names {}, but {} {} visible", device.str(), visible,
                                 visible == 1 ? "is" : "are"),
                     "name visible devices, or leave device_ids empty for all of them");
  }
  return devices;
}

// The device of all parameters and buffers.
at::Device device_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> tensors = distinct_parameters(module);
  for (at::Tensor& buffer : module.buffers()) tensors.push_back(std::move(buffer));
  if (tensors.empty()) return at::kCPU;
  const at::Device device = tensors.front().device();
  for (const at::Tensor& tensor : tensors) {
    if (tensor.device() == device) continue;
    throw UsageError({.component = "DataParallel"},
                     fmt::format("parameters and buffers of the module are on several devices: {} "
                                 "and {}",
                                 device.str(), tensor.device().str()),
                     "move all to one: net->to(device)");
  }
  return device;
}

// Replicas run in any order, and the calls of a group need one.
void refuse_norms_over_ranks(const torch::nn::Module& module) {
  module.apply([&](const std::string& name, const torch::nn::Module& submodule) {
    const auto* norm = submodule.as<SyncBatchNorm>();
    if (!norm || !norm->group() || norm->group()->size() == 1) return;
    throw UsageError({.component = "DataParallel"},
                     fmt::format("SyncBatchNorm {} exchanges statistics with other ranks, which "
                                 "replicas cannot do",
                                 name),
                     "use one DistributedDataParallel rank for each device, or BatchNorm");
  });
}

}  // namespace

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                   DataParallelOptions options, ModuleFactory by_default)
    : ParallelModule("DataParallel", std::move(module)),
      options_(checked(std::move(options))),
      device_ids_(with_indices(options_.device_ids)),
      by_default_(std::move(by_default)),
      workers_(std::make_shared<ReplicaWorkers>()) {
  refuse_norms_over_ranks(inner());
}

DataParallelBase::~DataParallelBase() {
  workers_->stop();
}

std::vector<at::Device> DataParallelBase::devices() const {
  std::vector<at::Device> devices = device_ids_;
  const at::Device here = module_device_;
  if (!devices.empty()) {
    if (devices.front() == here) return there(devices);
    throw UsageError(
        {.component = "DataParallel"},
        fmt::format("the module is on {}, but device_ids begins with {}", here.str(),
                    devices.front().str()),
        fmt::format("move it there: net->to(torch::Device(\"{}\"))", devices.front().str()));
  }
  if (here.is_cpu()) {
    const int count = options_.replicas > 0 ? options_.replicas : available_cores();
    return std::vector<at::Device>(static_cast<std::size_t>(count), here);
  }
  devices.push_back(here);
  const int visible = device_count(here.type());
  for (int index = 0; index < visible; ++index) {
    if (index != here.index()) {
      devices.emplace_back(here.type(), static_cast<at::DeviceIndex>(index));
    }
  }
  return devices;
}

// Makes replicas if there are none on these devices, and gives them the module's values.
Replicas& DataParallelBase::fresh_replicas(const std::vector<at::Device>& on) {
  if (!replicas_ || replicas_->devices() != on) {
    replicas_.reset();  // before the new ones take memory
    replicas_ = std::make_unique<Replicas>(
        inner(), Replicas::Options{.devices = on,
                                   .share_parameters = options_.share_parameters,
                                   .sources = {.make_replica = options_.make_replica,
                                               .by_default = by_default_,
                                               .trust_constructors = options_.trust_constructors}});
  }
  workers_->count_moved(replicas_->refresh());
  return *replicas_;
}

std::optional<ReplicaForward> DataParallelBase::begin(std::vector<at::Tensor> inputs) {
  module_device_ = device_of(inner());
  const std::vector<at::Device> on = devices();
  const auto scatter = plan_scatter(inputs, options_.dim, static_cast<int>(on.size()));
  if (!scatter || scatter->parts() == 1) return {};
  return ReplicaForward(fresh_replicas(on), workers_, *scatter, std::move(inputs));
}

std::vector<DataParallelBase::WholeReplica> DataParallelBase::whole_replicas() {
  module_device_ = device_of(inner());
  const std::vector<at::Device> on = devices();
  if (std::ranges::any_of(on, [&](at::Device device) { return device != on.front(); })) {
    throw UsageError({.component = "DataParallel"},
                     "replicas on several devices cannot compute microbatches",
                     "use one DistributedDataParallel rank for each device");
  }
  const Replicas& replicas = fresh_replicas(on);
  std::vector<WholeReplica> whole;
  for (int i = 0; i < replicas.count(); ++i) {
    WholeReplica& replica = whole.emplace_back(WholeReplica{&replicas.module(i), {}});
    replica.parameters.resize(replicas.originals().size());
    for (const ReplicaTensor& parameter : replicas.parameters(i)) {
      at::Tensor& place = replica.parameters[parameter.original];
      if (place.defined()) {
        throw UsageError({.component = "DataParallel"},
                         "a replica has two copies of a parameter that the module uses under two "
                         "names, so their gradients cannot be summed in a fixed order",
                         "pass .make_replica, a function that makes a module in which both names "
                         "are one tensor");
      }
      place = parameter.tensor;
    }
  }
  return whole;
}

void DataParallelBase::run_on_replicas(const char* what,
                                       const std::function<void(int replica)>& job) {
  workers_->run(what, replicas_->count(), job);
}

std::uint64_t DataParallelBase::bytes_moved() const {
  return workers_->bytes_moved();
}

std::optional<at::Device> DataParallelBase::input_device() const {
  if (module_device_.is_cpu() && device_ids_.empty()) return {};
  return module_device_;
}

void DataParallelBase::pretty_print(std::ostream& stream) const {
  stream << "lockstep::DataParallel";
}

}  // namespace lockstep
