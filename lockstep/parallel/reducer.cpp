// SPDX-License-Identifier: BSD-3-Clause
// Checks parameters and options, and compares them between ranks.
#include "lockstep/parallel/reducer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/backward_hooks.h"
#include "lockstep/parallel/backward_reduction.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/model_agreement.h"

namespace lockstep {
namespace {

std::vector<NamedTensor> numbered(const std::vector<at::Tensor>& parameters) {
  std::vector<NamedTensor> named;
  for (const at::Tensor& parameter : parameters) {
    named.push_back({fmt::format("#{}", named.size()), parameter});
  }
  return named;
}

std::vector<NamedTensor> checked(std::vector<NamedTensor> parameters, const ProcessGroup& group) {
  for (const NamedTensor& parameter : parameters) {
    if (!parameter.tensor.defined()) {
      throw UsageError(group.context("reducer"),
                       fmt::format("parameter {} is undefined", parameter.name),
                       "give a tensor, or leave it out");
    }
    if (!parameter.tensor.is_leaf()) {
      throw UsageError(
          group.context("reducer"),
          fmt::format("parameter {} was computed from other tensors, and only leaves accumulate "
                      "gradients",
                      parameter.name),
          "give the tensors that it was computed from");
    }
  }
  return each_tensor_once(std::move(parameters));
}

// A frozen one is broadcast, too.
void require_dense_parameters(const std::vector<NamedTensor>& parameters,
                              const ProcessGroup& group) {
  for (const auto& [name, parameter] : parameters) {
    if (parameter.layout() == at::kStrided) continue;
    throw UsageError(
        group.context("reducer"),
        fmt::format("parameter {} is sparse, and ranks can only exchange dense ones", name),
        "register parameter.to_dense()");
  }
}

std::int64_t bytes(double mebibytes, std::string_view option, const ProcessGroup& group) {
  if (!(mebibytes >= 0) || mebibytes > 1 << 20) {
    throw UsageError(group.context("reducer"), fmt::format("{} is {}", option, mebibytes),
                     "it must be a size in MiB, 0 or more");
  }
  return std::llround(mebibytes * (1 << 20));
}

}  // namespace

Reducer::Reducer(const std::vector<NamedTensor>& parameters, GroupArgument argument,
                 const ReducerOptions& options) {
  const CallScope scope(CallOrigin::wrapping);
  std::shared_ptr<ProcessGroup> group = argument.shared();
  if (group == nullptr) {
    throw UsageError({.component = "reducer"}, "the group is null", "call init_process_group()");
  }
  const BucketLimits limits{bytes(options.first_bucket_mb, "first_bucket_mb", *group),
                            bytes(options.bucket_cap_mb, "bucket_cap_mb", *group)};
  const std::vector<NamedTensor> taken = checked(parameters, *group);
  const bool any = std::any_of(taken.begin(), taken.end(), [](const NamedTensor& parameter) {
    return parameter.tensor.requires_grad();
  });
  if (group->size() > 1) {
    // Before any rank reports errors in its own model: ranks that differ learn how they differ.
    std::vector<std::string> lines = describe("parameter", taken);
    lines.push_back(fmt::format("buckets of {} and {} bytes{}{}{}", limits.first, limits.others,
                                options.check_finite ? ", check_finite" : "",
                                options.whole_gradients ? "" : ", divided gradients",
                                options.one_copy_per_host ? ", one_copy_per_host" : ""));
    check_agreement(*group, "reducer", lines);
    require_dense_parameters(taken, *group);
  }
  if (!any) {
    throw UsageError(group->context("reducer"),
                     "no parameter requires a gradient, so that there is nothing to reduce",
                     "use the module without wrapping it");
  }
  reduction_ =
      std::make_shared<BackwardReduction>(taken, std::move(group), limits, options, no_sync_depth_);
}

Reducer::Reducer(const std::vector<at::Tensor>& parameters, GroupArgument group,
                 const ReducerOptions& options)
    : Reducer(numbered(parameters), std::move(group), options) {}

at::Tensor Reducer::prepare(const at::Tensor& output) {
  return std::move(prepare(std::vector{output}).front());
}

std::vector<at::Tensor> Reducer::prepare(std::vector<at::Tensor> outputs) {
  reduction_->check();
  for (at::Tensor& output : outputs) {
    at::Tensor* const pointer = &output;
    reduction_->watch({&pointer, 1}, next_node_number());
  }
  return outputs;
}

void Reducer::register_comm_hook(CommHook hook) {
  if (!hook) {
    throw UsageError(reduction_->group().context(), "the communication hook is empty",
                     "give a function");
  }
  reduction_->register_comm_hook(std::move(hook));
}

std::vector<std::string> Reducer::unused_parameters() const {
  return reduction_->unused_parameters();
}

}  // namespace lockstep
