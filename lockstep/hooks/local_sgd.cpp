// SPDX-License-Identifier: BSD-3-Clause
// Post-local SGD: a hook that reduces over the whole group at first, then over a subgroup or not at
// all, and the averager of the parameters that drift apart since.
#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/hooks/hook_group.h"
#include "lockstep/parallel/model_agreement.h"
#include "lockstep/rendezvous/exchange.h"

namespace lockstep {
namespace {

constexpr const char* kPostLocalSgd = "post_local_sgd_hook";
constexpr const char* kAverager = "PeriodicModelAverager";

// Collective. The ranks that share this rank's host.
std::shared_ptr<ProcessGroup> split_by_host(ProcessGroup& group) {
  const CallScope scope(CallOrigin::comm_hook);
  const auto own = static_cast<std::int64_t>(std::hash<std::string>()(this_host()));
  const at::Tensor host = at::full({1}, own, at::kLong).to(group.device());
  const at::Tensor hosts = at::empty({group.size()}, host.options());
  group.all_gather_into_tensor(hosts, host).wait();
  const at::Tensor on_cpu = hosts.cpu();
  std::vector<int> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (on_cpu.data_ptr<std::int64_t>()[rank] == own) ranks.push_back(rank);
  }
  return group.split(ranks);
}

class PostLocalSgd {
 public:
  explicit PostLocalSgd(const PostLocalSGDState& options)
      : options_(options), group_(kPostLocalSgd, options.group) {
    ProcessGroup& group = options.group.get();
    if (options.start_localSGD_iter < 0) {
      throw UsageError(group.context(kPostLocalSgd),
                       fmt::format("start_localSGD_iter is {}", options.start_localSGD_iter),
                       "set it to 0 or more");
    }
    if (!options.post_local_gradient_allreduce) return;
    subgroup_ = options.subgroup.shared() ? options.subgroup.shared() : split_by_host(group);
  }

  Work reduce(const GradBucket& bucket) {
    ProcessGroup& group = group_.for_bucket(bucket);
    if (bucket.updated_in_shares()) check_subgroup_is(group);
    if (bucket.index() == 0 && ++iteration_ == 1) compare_options(group);
    if (iteration_ <= options_.start_localSGD_iter) {
      return group.all_reduce(bucket.buffer(), ReduceOp::mean);
    }
    return subgroup_ ? subgroup_->all_reduce(bucket.buffer(), ReduceOp::mean) : Work();
  }

 private:
  // Ranks that differ would wait for each other in different groups.
  void compare_options(ProcessGroup& group) const {
    check_agreement(
        group, kPostLocalSgd,
        {fmt::format("start_localSGD_iter {}", options_.start_localSGD_iter),
         fmt::format("post_local_gradient_allreduce {}", options_.post_local_gradient_allreduce)},
        "hook");
  }

  void check_subgroup_is(const ProcessGroup& group) const {
    if (subgroup_ && subgroup_->size() == group.size()) return;
    throw UsageError(
        group.context(kPostLocalSgd),
        "a sharded optimizer was made from the model. Each rank updates a share of the parameters "
        "for all ranks, so all ranks would train that share on this rank's gradients only",
        "make the optimizer from the parameters instead of the model");
  }

  const PostLocalSGDState options_;
  const HookGroup group_;
  std::shared_ptr<ProcessGroup> subgroup_;
  std::int64_t iteration_ = 0;  // counted from 1
};

// Parameters of one type on one device.
struct AveragedKind {
  std::vector<at::Tensor> parameters = {};
  at::Tensor flat = {};
  Work reduction = {};

  bool takes(const at::Tensor& parameter) const {
    return parameter.scalar_type() == parameters.front().scalar_type() &&
           parameter.device() == parameters.front().device();
  }
};

std::vector<AveragedKind> by_type_and_device(const std::vector<at::Tensor>& parameters) {
  std::vector<AveragedKind> kinds;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor values = parameter.detach();
    const at::Tensor real = values.is_complex() ? at::view_as_real(values) : values;
    const auto kind =
        std::ranges::find_if(kinds, [&](const AveragedKind& kind) { return kind.takes(real); });
    AveragedKind& own = kind == kinds.end() ? kinds.emplace_back() : *kind;
    own.parameters.push_back(real);
  }
  return kinds;
}

void flatten(AveragedKind& kind) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : kind.parameters) parts.push_back(parameter.reshape(-1));
  kind.flat = at::cat(parts);
}

void put_back(const AveragedKind& kind) {
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : kind.parameters) {
    parameter.copy_(kind.flat.narrow(0, begin, parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
}

}  // namespace

CommHook post_local_sgd_hook(PostLocalSGDState state) {
  return [hook = std::make_shared<PostLocalSgd>(state)](GradBucket& bucket) {
    return hook->reduce(bucket);
  };
}

PeriodicModelAverager::PeriodicModelAverager(PeriodicModelAveragerOptions options,
                                             GroupArgument group)
    : options_(options), group_(group.get().shared_from_this()) {
  if (options_.period >= 1 && options_.warmup_steps >= 0) return;
  throw UsageError(
      group_->context(kAverager),
      fmt::format("period is {} and warmup_steps is {}", options_.period, options_.warmup_steps),
      "set period to 1 or more, and warmup_steps to 0 or more");
}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const auto undefined = std::ranges::find_if_not(parameters, &at::Tensor::defined);
  if (undefined != parameters.end()) {
    throw UsageError(
        group_->context(kAverager),
        fmt::format("parameter {} is an undefined tensor", undefined - parameters.begin()),
        "leave it out on every rank");
  }
  const CallScope scope(CallOrigin::average_parameters);
  if (step_ == 0) {
    std::vector<std::string> lines{fmt::format("period {}", options_.period),
                                   fmt::format("warmup_steps {}", options_.warmup_steps)};
    std::vector<NamedTensor> numbered;
    for (const at::Tensor& parameter : parameters) {
      numbered.push_back({std::to_string(numbered.size()), parameter});
    }
    std::ranges::move(describe("parameter", numbered), std::back_inserter(lines));
    check_agreement(*group_, kAverager, lines, "averager");
  }
  const std::int64_t since_warm_up = step_++ - options_.warmup_steps;
  if (since_warm_up < 0 || since_warm_up % options_.period != 0) return;
  const at::NoGradGuard no_grad;
  std::vector<AveragedKind> kinds = by_type_and_device(parameters);
  for (AveragedKind& kind : kinds) {
    flatten(kind);
    kind.reduction = group_->all_reduce(kind.flat, ReduceOp::mean);
  }
  for (AveragedKind& kind : kinds) {
    kind.reduction.wait();
    put_back(kind);
  }
}

}  // namespace lockstep
