// SPDX-License-Identifier: BSD-3-Clause
// Averages the parameters of each type and device in one flat tensor.
#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

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

PeriodicModelAverager::PeriodicModelAverager(PeriodicModelAveragerOptions options,
                                             GroupArgument group)
    : options_(options), group_(group.get().shared_from_this()) {
  if (options_.period >= 1 && options_.warmup_steps >= 0) return;
  throw UsageError(fmt::format(
      "[PeriodicModelAverager] rank {} of {}: period is {} and warmup_steps is {}; set period to 1 "
      "or more, and warmup_steps to 0 or more",
      group_->rank(), group_->size(), options_.period, options_.warmup_steps));
}

void PeriodicModelAverager::average_parameters(const std::vector<at::Tensor>& parameters) {
  const auto undefined = std::ranges::find_if_not(parameters, &at::Tensor::defined);
  if (undefined != parameters.end()) {
    throw UsageError(
        fmt::format("[PeriodicModelAverager] rank {} of {}: parameter {} is an undefined tensor; "
                    "leave it out on "
                    "every rank",
                    group_->rank(), group_->size(), undefined - parameters.begin()));
  }
  const CallScope scope(CallOrigin::average_parameters);
  if (step_ == 0) {
    check_agreement(*group_, "PeriodicModelAverager",
                    {fmt::format("period {}", options_.period),
                     fmt::format("warmup_steps {}", options_.warmup_steps)},
                    "averager");
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
