// SPDX-License-Identifier: BSD-3-Clause
// Lays parameters into flat memory, and gathers the ranks' parts of it.
#include "lockstep/optim/flat_parameters.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/one_copy.h"

namespace lockstep::optim {
namespace {

// Stands in a plan for a parameter that the optimizer does not have.
constexpr int kForeign = -1;

// The strides of the parameter, or dense ones if it has gaps.
std::vector<std::int64_t> strides_of(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty(parameter.sizes(), at::kMeta).strides().vec();
}

std::vector<PlannedBucket> plan_in_order(const std::vector<at::Tensor>& parameters) {
  std::vector<GradientSize> sizes;
  for (const at::Tensor& parameter : parameters) {
    sizes.push_back({parameter.numel(), parameter.scalar_type(), parameter.device()});
  }
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  return plan_buckets(sizes, order, {});
}

using Numbers = std::unordered_map<const at::TensorImpl*, int>;

Numbers numbers_of(const std::vector<at::Tensor>& parameters) {
  Numbers numbers;
  for (const at::Tensor& parameter : parameters) {
    numbers.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(numbers.size()));
  }
  return numbers;
}

// The plan of the gradients, with parameters counted as in the list.
std::vector<PlannedBucket> plan_of(const GradientBuckets& gradients,
                                   const std::vector<at::Tensor>& parameters) {
  const Numbers numbers = numbers_of(parameters);
  std::vector<PlannedBucket> plan = gradients.plan();
  for (PlannedBucket& bucket : plan) {
    for (int& parameter : bucket.parameters) {
      const auto number = numbers.find(
          gradients.parameters()[static_cast<std::size_t>(parameter)].unsafeGetTensorImpl());
      parameter = number == numbers.end() ? kForeign : number->second;
    }
  }
  return plan;
}

// The names that the model gives the parameters, or their numbers.
std::vector<std::string> names_of(const std::vector<at::Tensor>& parameters,
                                  const GradientBuckets* gradients) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < parameters.size(); ++i) names.push_back(std::to_string(i));
  if (gradients == nullptr) return names;
  const Numbers numbers = numbers_of(parameters);
  for (std::size_t i = 0; i < gradients->parameters().size(); ++i) {
    const auto number = numbers.find(gradients->parameters()[i].unsafeGetTensorImpl());
    if (number == numbers.end()) continue;
    names[static_cast<std::size_t>(number->second)] = gradients->names()[i];
  }
  return names;
}

}  // namespace

void require_parameters_of(const GradientBuckets& gradients,
                           const std::vector<at::Tensor>& parameters, std::string_view owner) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& parameter : gradients.parameters()) {
    known.insert(parameter.unsafeGetTensorImpl());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (!parameter.requires_grad() || known.contains(parameter.unsafeGetTensorImpl())) continue;
    throw UsageError({.component = std::string(owner)},
                     fmt::format("parameter {}, {}, is not one that the wrapped model had and "
                                 "trained when it was wrapped",
                                 i, description(parameter)),
                     "wrap the model that has it, or give the optimizer the group instead of the "
                     "model");
  }
}

FlatParameters::FlatParameters(std::string_view owner, std::vector<at::Tensor> parameters,
                               ProcessGroup& group, std::shared_ptr<ProcessGroup> host,
                               const GradientBuckets* gradients)
    : owner_(owner),
      parameters_(std::move(parameters)),
      names_(names_of(parameters_, gradients)),
      group_(group),
      host_(std::move(host)) {
  if (host_) find_ranks_of_other_hosts();
  const auto plan = gradients ? plan_of(*gradients, parameters_) : plan_in_order(parameters_);
  reaches_gradients_ = gradients != nullptr;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    add_bucket(plan[i], gradients ? &(*gradients)[i] : nullptr);
  }
  // What the parameters occupied would otherwise add to the peak.
  if (group_.device().is_cpu()) give_back_freed_memory();
  if (!any_is_mapped_) return;
  // The number of calls that rank 0 has made identifies this object: no other has the same.
  const at::Tensor name = at::full({1}, static_cast<std::int64_t>(group_.calls_made()), at::kLong);
  group_.broadcast(name, 0).wait();
  number_ = name.item<std::int64_t>();
}

// Hosts with fewer ranks than this one have some of them store for several ranks here.
void FlatParameters::find_ranks_of_other_hosts() {
  const std::vector<std::vector<int>> hosts = group_.hosts();
  const auto has_rank = [](const std::vector<int>& ranks, int rank) {
    return std::ranges::find(ranks, rank) != ranks.end();
  };
  const auto own = std::ranges::find_if(
      hosts, [&](const std::vector<int>& ranks) { return has_rank(ranks, group_.rank()); });
  for (auto host = hosts.begin(); host != hosts.end(); ++host) {
    if (host == own) continue;
    receivers_.push_back((*host)[static_cast<std::size_t>(host_->rank()) % host->size()]);
    for (std::size_t i = 0; i < host->size(); ++i) {
      if ((*own)[i % own->size()] == group_.rank()) senders_.push_back((*host)[i]);
    }
  }
}

void FlatParameters::add_bucket(const PlannedBucket& plan, const Bucket* gradients) {
  FlatBucket bucket;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.parameters[i] == kForeign) {
      reaches_gradients_ = false;
      continue;
    }
    const auto number = static_cast<std::size_t>(plan.parameters[i]);
    bucket.members.push_back({number, plan.offsets[i]});
    // set_data() since the first backward may have changed the order of elements.
    const bool lies_alike =
        gradients != nullptr &&
        gradients->gradient(static_cast<int>(i)).strides() == strides_of(parameters_[number]);
    reaches_gradients_ = reaches_gradients_ && lies_alike;
  }
  if (bucket.members.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters_[bucket.members.front().number];
  bucket.share = share_of_rank(plan, first.element_size(), group_.rank(), group_.size());
  bucket.elements = bucket.share.count * group_.size();
  bucket.options = first.options();
  have_one_copy_ = has_one_copy(first);
  if (!have_one_copy_) {
    bucket.memory = group_.empty({bucket.elements}, bucket.options);
    bucket.memory.zero_();
    move_members(bucket);
  }
  add_parts(bucket, plan, gradients);
  buckets_.push_back(std::move(bucket));
}

void FlatParameters::add_parts(FlatBucket& bucket, const PlannedBucket& plan,
                               const Bucket* gradients) {
  std::vector<std::byte*> copies;
  if (bucket.memory.defined()) copies = group_.symmetric_memory(bucket.memory);
  std::vector<std::byte*> reduced_from;
  if (gradients != nullptr) {
    bucket.gradients = gradients->flat();
    reduced_from = group_.symmetric_memory(bucket.gradients);
  }
  reaches_gradients_ = reaches_gradients_ && !reduced_from.empty();
  bucket.is_mapped = !copies.empty() || !bucket.memory.defined();
  any_is_mapped_ = any_is_mapped_ || bucket.is_mapped;
  if (!copies.empty()) copies.erase(copies.begin() + group_.rank());
  bucket.parts.resize(static_cast<std::size_t>(group_.size()));
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank != group_.rank() && !have_one_copy_) continue;
    const ElementRange share = share_of_rank(
        plan, static_cast<std::int64_t>(bucket.options.dtype().itemsize()), rank, group_.size());
    for (const auto& [number, offset] : bucket.members) {
      const at::Tensor& parameter = parameters_[number];
      const ElementRange part = overlap({offset, parameter.numel()}, share);
      if (part.count == 0) continue;
      auto& added = bucket.parts[static_cast<std::size_t>(rank)].emplace_back(ParameterPart{
          number, parameter, {part.begin - offset, part.count}, copies, reduced_from});
      const std::int64_t bytes_before = part.begin * parameter.element_size();
      for (std::byte*& copy : added.copies) copy += bytes_before;
      for (std::byte*& gradient : added.gradients) gradient += bytes_before;
    }
  }
}

// Copies the parameters into the memory of the bucket, and lets them live there.
void FlatParameters::move_members(const FlatBucket& bucket) {
  // As in Bucket: views below autograd are independent tensors that share the memory.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const auto& [number, offset] : bucket.members) {
    const at::Tensor& parameter = parameters_[number];
    const at::Tensor view = bucket.memory.as_strided(parameter.sizes(), strides_of(parameter),
                                                     bucket.memory.storage_offset() + offset);
    view.copy_(parameter);
    parameter.set_data(view);
  }
}

ErrorContext FlatParameters::context() const {
  return group_.context(owner_);
}

void FlatParameters::check() const {
  for (const FlatBucket& bucket : buckets_) {
    for (const auto& [number, offset] : bucket.members) {
      const at::Tensor& parameter = parameters_[number];
      if (!bucket.memory.defined()) {
        require_unchanged(parameter, names_[number], context());
        continue;
      }
      if (parameter.is_alias_of(bucket.memory) &&
          parameter.storage_offset() == bucket.memory.storage_offset() + offset) {
        continue;
      }
      throw UsageError(
          context(),
          fmt::format("parameter {} has been moved out of the optimizer's memory, by to(), "
                      "set_data() or another sharded optimizer",
                      names_[number]),
          "convert and load a model before you make its one optimizer, and copy values into "
          "parameters instead of replacing them");
    }
  }
}

void FlatParameters::begin_update(bool averages) {
  averages_ = averages;
  ++updates_;
  if (!any_is_mapped_) return;
  // The least and the greatest of all ranks are equal only if all are.
  std::array<std::int64_t, 6> bounds = {number_,  updates_,  averages,
                                        -number_, -updates_, -averages};
  const at::Tensor shared = at::from_blob(bounds.data(), {6}, at::kLong);
  group_.all_reduce(shared, ReduceOp::max).wait();
  if (bounds[0] == -bounds[3] && bounds[1] == -bounds[4] && bounds[2] == -bounds[5]) return;
  throw UsageError(
      context(),
      fmt::format(
          "other ranks have called step() of another optimizer, or of this one more or less "
          "often (here: step {})",
          updates_),
      "make the same calls on every rank");
}

void FlatParameters::exchange(std::size_t bucket) {
  const auto& [memory, options, elements, share, is_mapped, members, parts, gradients] =
      buckets_[bucket];
  if (is_mapped) {
    const int passes = (averages_ ? 1 : 0) + (memory.defined() ? 1 : 0);  // gradients and values
    const auto element_size = static_cast<std::int64_t>(options.dtype().itemsize());
    group_.count_sent(passes * (elements - share.count) * element_size);
    if (!memory.defined()) exchange_between_hosts(parts);
  } else {
    const at::Tensor own = memory.narrow(0, share.begin, share.count);
    exchanges_.push_back(group_.all_gather_into_tensor(memory, own));
  }
}

// From the memory of one host straight into that of another, so nothing is copied in between.
void FlatParameters::exchange_between_hosts(const std::vector<std::vector<ParameterPart>>& parts) {
  const auto values = [](const ParameterPart& part) {
    const at::Tensor whole = part.parameter.variable_data();
    return whole.as_strided({part.range.count}, {1}, whole.storage_offset() + part.range.begin);
  };
  for (const int rank : receivers_) {
    for (const ParameterPart& part : parts[static_cast<std::size_t>(group_.rank())]) {
      exchanges_.push_back(group_.send(values(part), rank));
    }
  }
  for (const int rank : senders_) {
    for (const ParameterPart& part : parts[static_cast<std::size_t>(rank)]) {
      exchanges_.push_back(group_.recv(values(part), rank));
    }
  }
}

void FlatParameters::end_update() {
  for (Work& exchange : std::exchange(exchanges_, {})) exchange.wait();
  if (any_is_mapped_) (host_ ? *host_ : group_).barrier().wait();
  for (const FlatBucket& bucket : buckets_) {
    for (const Member& member : bucket.members) {
      const at::Tensor& parameter = parameters_[member.number];
      if (parameter.grad().defined()) parameter.unsafeGetTensorImpl()->bump_version();
      accept_change(parameter);
    }
  }
}

void FlatParameters::leave_shared_memory() {
  const at::NoGradGuard no_grad;
  for (FlatBucket& bucket : buckets_) {
    if (!bucket.is_mapped) continue;
    if (bucket.memory.defined()) {
      bucket.memory = at::empty_like(bucket.memory);
      move_members(bucket);
    } else {
      for (const Member& member : bucket.members) leave_one_copy(parameters_[member.number]);
    }
    bucket.is_mapped = false;
    for (ParameterPart& part : bucket.parts[static_cast<std::size_t>(group_.rank())]) {
      part.copies.clear();
      part.gradients.clear();
    }
  }
}

std::vector<at::Tensor> FlatParameters::gather(const std::vector<std::vector<at::Tensor>>& parts,
                                               int to) {
  std::vector<at::Tensor> result(parameters_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const FlatBucket& bucket = buckets_[b];
    const auto type = c10::typeMetaToScalarType(bucket.options.dtype());
    const auto options = bucket.options.dtype(state_type(type));
    const at::Tensor own = at::zeros({bucket.share.count}, options);
    auto values = parts[b].begin();
    for (const auto& [number, offset] : bucket.members) {
      const ElementRange part = overlap({offset, parameters_[number].numel()}, bucket.share);
      if (part.count == 0) continue;
      if (values->defined()) {
        own.narrow(0, part.begin - bucket.share.begin, part.count).copy_(*values);
      }
      ++values;
    }
    at::Tensor all;
    std::vector<at::Tensor> shares;
    if (group_.rank() == to) {
      all = at::empty({bucket.elements}, options);
      shares = all.chunk(group_.size());
    }
    group_.gather(shares, own, to).wait();
    if (group_.rank() != to) continue;
    for (const auto& [number, offset] : bucket.members) {
      const at::Tensor& parameter = parameters_[number];
      result[number] = all.as_strided(parameter.sizes(), parameter.strides(), offset).clone();
    }
  }
  return result;
}

}  // namespace lockstep::optim
