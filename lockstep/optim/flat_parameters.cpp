// SPDX-License-Identifier: BSD-3-Clause
// Lays parameters into flat memory, and gathers the ranks' parts of it.
#include "lockstep/optim/flat_parameters.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/optim/kernels/element_types.h"
#include "lockstep/optim/parameter_groups.h"

namespace lockstep::optim {
namespace {

// Stands in a plan for a parameter that the optimizer does not have.
constexpr int kForeign = -1;

// Dense strides: the parameter's own unless it has gaps.
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

// The reduction's plan, with parameters counted as in the list.
std::vector<PlannedBucket> plan_of(const BackwardReduction& reduction,
                                   const std::vector<at::Tensor>& parameters) {
  const Numbers numbers = numbers_of(parameters);
  std::vector<PlannedBucket> plan = reduction.plan();
  for (PlannedBucket& bucket : plan) {
    for (int& parameter : bucket.parameters) {
      const auto number = numbers.find(reduction.tensor(parameter).unsafeGetTensorImpl());
      parameter = number == numbers.end() ? kForeign : number->second;
    }
  }
  return plan;
}

}  // namespace

void require_parameters_of(const BackwardReduction& reduction,
                           const std::vector<at::Tensor>& parameters, std::string_view owner) {
  std::unordered_set<const at::TensorImpl*> known;
  for (int i = 0; i < reduction.parameters(); ++i) {
    known.insert(reduction.tensor(i).unsafeGetTensorImpl());
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    if (!parameter.requires_grad() || known.contains(parameter.unsafeGetTensorImpl())) continue;
    throw UsageError(
        fmt::format("{}: parameter {}, {}, is not one that the wrapped model had and "
                    "trained when it was wrapped. Wrap the model that has it, or give "
                    "the optimizer the group instead of the model",
                    owner, i, description(parameter)));
  }
}

FlatParameters::FlatParameters(std::string_view owner, std::vector<at::Tensor> parameters,
                               ProcessGroup& group, const BackwardReduction* reduction)
    : owner_(owner), parameters_(std::move(parameters)), group_(group) {
  const auto plan = reduction ? plan_of(*reduction, parameters_) : plan_in_order(parameters_);
  for (const PlannedBucket& bucket : plan) add_bucket(bucket);
}

void FlatParameters::add_bucket(const PlannedBucket& plan) {
  FlatBucket bucket;
  for (std::size_t i = 0; i < plan.parameters.size(); ++i) {
    if (plan.parameters[i] == kForeign) continue;
    bucket.members.push_back({static_cast<std::size_t>(plan.parameters[i]), plan.offsets[i]});
  }
  if (bucket.members.empty()) return;
  const at::NoGradGuard no_grad;
  const at::Tensor& first = parameters_[bucket.members.front().number];
  bucket.share = share_of_rank(plan, first.element_size(), group_.rank(), group_.size());
  // As in Bucket: views below autograd are independent tensors that share the memory.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  bucket.memory = group_.empty({bucket.share.count * group_.size()}, first.options());
  bucket.memory.zero_();
  for (const auto& [number, offset] : bucket.members) {
    const at::Tensor& parameter = parameters_[number];
    const at::Tensor view = bucket.memory.as_strided(parameter.sizes(), strides_of(parameter),
                                                     bucket.memory.storage_offset() + offset);
    view.copy_(parameter);
    parameter.set_data(view);
    const ElementRange part = overlap({offset, parameter.numel()}, bucket.share);
    if (part.count == 0) continue;
    bucket.own_parts.push_back({number, parameter, {part.begin - offset, part.count}});
  }
  buckets_.push_back(std::move(bucket));
}

void FlatParameters::check() const {
  for (const FlatBucket& bucket : buckets_) {
    for (const auto& [number, offset] : bucket.members) {
      const at::Tensor& parameter = parameters_[number];
      if (parameter.is_alias_of(bucket.memory) &&
          parameter.storage_offset() == bucket.memory.storage_offset() + offset) {
        continue;
      }
      throw UsageError(fmt::format(
          "{}, rank {} of {}: parameter {} has been moved out of the optimizer's memory, by to(), "
          "set_data() or another sharded optimizer. Convert and load a model before you make its "
          "one optimizer, and copy values into parameters instead of replacing them",
          owner_, group_.rank(), group_.size(), number));
    }
  }
}

Work FlatParameters::exchange(std::size_t bucket) {
  const auto& [memory, share, members, own_parts] = buckets_[bucket];
  return group_.all_gather_into_tensor(memory, memory.narrow(0, share.begin, share.count));
}

void FlatParameters::commit() const {
  for (const FlatBucket& bucket : buckets_) {
    for (const Member& member : bucket.members) {
      const at::Tensor& parameter = parameters_[member.number];
      if (parameter.grad().defined()) parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
}

std::vector<at::Tensor> FlatParameters::gather(const std::vector<std::vector<at::Tensor>>& parts,
                                               int to) {
  std::vector<at::Tensor> result(parameters_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const FlatBucket& bucket = buckets_[b];
    const auto options = bucket.memory.options().dtype(state_type(bucket.memory.scalar_type()));
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
      all = at::empty({bucket.memory.numel()}, options);
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
