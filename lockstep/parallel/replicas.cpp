// SPDX-License-Identifier: BSD-3-Clause
// Makes replicas, shares or copies their tensors, and refreshes them before a forward.
#include "lockstep/parallel/replicas.h"

#include <algorithm>
#include <unordered_map>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/strides.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/variable.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

using torch::nn::Module;

// A sparse tensor consists of several tensors in memory, and is never the same.
bool same_memory(const at::Tensor& one, const at::Tensor& other) {
  if (one.layout() != at::kStrided || other.layout() != at::kStrided) return false;
  return one.data_ptr() == other.data_ptr() && one.scalar_type() == other.scalar_type() &&
         one.device() == other.device() && is_lazy(one) == is_lazy(other) &&
         one.sizes() == other.sizes() && one.strides() == other.strides();
}

// The strides of a copy without gaps that keeps the order of dimensions in memory.
std::vector<std::int64_t> dense_strides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  const auto strides = c10::contiguous_strides(tensor.sizes());
  return {strides.begin(), strides.end()};
}

// All elements, in the order of such a copy.
at::Tensor in_order_of_memory(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  if (!plain.is_non_overlapping_and_dense()) return plain.flatten();
  return plain.as_strided({plain.numel()}, {1}, plain.storage_offset());
}

// A replica's tensors with the same names, each once.
std::vector<ReplicaTensor> matched(const torch::OrderedDict<std::string, at::Tensor>& originals,
                                   const torch::OrderedDict<std::string, at::Tensor>& replicas,
                                   const std::unordered_map<const void*, std::size_t>& numbers) {
  std::vector<ReplicaTensor> result;
  std::unordered_map<const void*, std::size_t> seen;
  for (const auto& item : originals) {
    const at::Tensor& tensor = replicas[item.key()];
    const std::size_t original = numbers.at(item.value().unsafeGetTensorImpl());
    const auto [known, is_new] = seen.emplace(tensor.unsafeGetTensorImpl(), original);
    if (is_new) {
      result.push_back({tensor, original});
    } else if (known->second != original) {
      throw UsageError({.component = "DataParallel"},
                       fmt::format("{} and another name refer to one tensor in a replica, but to "
                                   "two in the module",
                                   item.key()),
                       "pass .make_replica, a function that makes a module like yours");
    }
  }
  return result;
}

std::vector<at::Tensor> list(const Module& module) {
  std::vector<at::Tensor> tensors = module.parameters();
  for (at::Tensor& buffer : module.buffers()) tensors.push_back(std::move(buffer));
  return tensors;
}

bool same_tensors(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  return std::equal(some.begin(), some.end(), others.begin(), others.end(),
                    [](const auto& one, const auto& other) { return one.is_same(other); });
}

}  // namespace

Replicas::Replicas(const Module& module, Options options)
    : module_(module), options_(std::move(options)) {}

std::uint64_t Replicas::refresh() {
  // Replicas outlive the inference mode in which they may be made.
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  auto submodules = module_.modules(/*include_self=*/false);
  if (replicas_.empty() || submodules != submodules_ || !same_tensors(list(module_), listed_)) {
    submodules_ = std::move(submodules);
    replicate();
  }
  std::uint64_t bytes = 0;
  for (Replica& replica : replicas_) bytes += update(replica);
  return bytes;
}

std::uint64_t Replicas::update(Replica& replica) const {
  share(replica);
  const std::uint64_t bytes = copy(replica);
  copy_sparse(replica);
  for (const ReplicaTensor& parameter : replica.parameters) {
    const bool requires_grad = parameters_[parameter.original].requires_grad();
    if (parameter.tensor.requires_grad() != requires_grad) {
      parameter.tensor.set_requires_grad(requires_grad);
    }
  }
  copy_modes(replica);
  return bytes;
}

std::shared_ptr<Module> Replicas::another() const {
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  Replica replica = replicate_on(options_.devices.front(), /*first=*/false);
  update(replica);
  return replica.module;
}

void Replicas::replicate() {
  replicas_.clear();
  outputs_checked_ = leaves_checked_ = false;
  listed_ = list(module_);
  parameters_ = distinct_parameters(module_);
  tensors_ = parameters_;
  for (const at::Tensor& buffer : module_.buffers()) tensors_.push_back(buffer);
  std::vector<Replica> replicas;
  for (const at::Device device : options_.devices) {
    replicas.push_back(replicate_on(device, replicas.empty()));
  }
  replicas_ = std::move(replicas);
}

Replicas::Replica Replicas::replicate_on(at::Device device, bool first) const {
  const c10::DeviceGuard current(device);
  std::unordered_map<const void*, std::size_t> numbers;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    numbers.emplace(tensors_[i].unsafeGetTensorImpl(), i);
  }
  Replica replica{.module = make_replica(module_, options_.sources), .device = device};
  Module& module = *replica.module;
  replica.submodules = module.modules(/*include_self=*/false);
  replica.parameters = matched(module_.named_parameters(), module.named_parameters(), numbers);
  const auto buffers = matched(module_.named_buffers(), module.named_buffers(), numbers);
  const bool shares = first || (options_.share_parameters && device == options_.devices.front());
  (shares ? replica.shared : replica.copied) = replica.parameters;
  auto& with_buffers = first ? replica.shared : replica.copied;
  with_buffers.insert(with_buffers.end(), buffers.begin(), buffers.end());
  const auto sparse = std::stable_partition(
      replica.copied.begin(), replica.copied.end(), [&](const ReplicaTensor& entry) {
        return tensors_[entry.original].layout() == at::kStrided;
      });
  replica.copied_sparse.assign(sparse, replica.copied.end());
  replica.copied.erase(sparse, replica.copied.end());
  // Changing a parameter that a backward still needs is an error, also through a replica. The
  // buffers of replicas other than the first are their own and change independently.
  for (const auto* tensors : {&replica.shared, &replica.parameters}) {
    for (const ReplicaTensor& entry : *tensors) {
      torch::autograd::impl::set_version_counter(
          entry.tensor, torch::autograd::impl::version_counter(tensors_[entry.original]));
    }
  }
  return replica;
}

void Replicas::share(const Replica& replica) const {
  for (const ReplicaTensor& entry : replica.shared) {
    const at::Tensor& original = tensors_[entry.original];
    if (!same_memory(entry.tensor, original)) entry.tensor.set_data(original.detach());
  }
}

void Replicas::lay_out(Replica& replica) const {
  replica.flats.clear();  // empty if allocating fails below
  std::vector<Flat> flats;
  for (std::size_t i = 0; i < replica.copied.size(); ++i) {
    const auto type = tensors_[replica.copied[i].original].scalar_type();
    auto flat = std::find_if(flats.begin(), flats.end(), [&](const Flat& other) {
      return tensors_[replica.copied[other.tensors.front()].original].scalar_type() == type;
    });
    if (flat == flats.end()) flat = flats.insert(flat, Flat{});
    flat->tensors.push_back(i);
  }
  for (Flat& flat : flats) {
    std::int64_t elements = 0;
    for (const std::size_t i : flat.tensors) {
      elements += tensors_[replica.copied[i].original].numel();
    }
    const at::Tensor& any = tensors_[replica.copied[flat.tensors.front()].original];
    flat.memory = at::empty({elements}, any.options().device(replica.device));
    std::int64_t offset = 0;
    for (const std::size_t i : flat.tensors) {
      const at::Tensor& original = tensors_[replica.copied[i].original];
      replica.copied[i].tensor.set_data(
          flat.memory.as_strided(original.sizes(), dense_strides(original), offset));
      offset += original.numel();
    }
  }
  replica.flats = std::move(flats);
}

std::uint64_t Replicas::copy(Replica& replica) const {
  const bool laid_out =
      (replica.copied.empty() || !replica.flats.empty()) &&
      std::all_of(replica.copied.begin(), replica.copied.end(), [&](const ReplicaTensor& entry) {
        const at::Tensor& original = tensors_[entry.original];
        return entry.tensor.scalar_type() == original.scalar_type() &&
               entry.tensor.sizes() == original.sizes() &&
               entry.tensor.strides() == at::IntArrayRef(dense_strides(original));
      });
  if (!laid_out) lay_out(replica);
  std::uint64_t bytes = 0;
  for (Flat& flat : replica.flats) {
    std::vector<at::Tensor> values;
    for (const std::size_t i : flat.tensors) {
      values.push_back(in_order_of_memory(tensors_[replica.copied[i].original]));
    }
    if (values.front().device() == replica.device) {
      at::cat_out(flat.memory, values);
    } else {
      flat.memory.copy_(at::cat(values), /*non_blocking=*/true);
    }
    bytes += flat.memory.nbytes();
  }
  return bytes;
}

void Replicas::copy_sparse(const Replica& replica) const {
  for (const ReplicaTensor& entry : replica.copied_sparse) {
    const at::Tensor values = tensors_[entry.original].detach();
    const bool is_here = values.device() == replica.device;
    entry.tensor.set_data(is_here ? values.clone() : values.to(replica.device));
  }
}

void Replicas::copy_modes(const Replica& replica) const {
  bool same = replica.module->is_training() == module_.is_training();
  for (std::size_t i = 0; same && i < submodules_.size(); ++i) {
    same = replica.submodules[i]->is_training() == submodules_[i]->is_training();
  }
  if (same) return;
  // train() also switches all submodules, so submodules with another mode come afterwards.
  replica.module->train(module_.is_training());
  for (std::size_t i = 0; i < submodules_.size(); ++i) {
    replica.submodules[i]->train(submodules_[i]->is_training());
  }
}

}  // namespace lockstep
