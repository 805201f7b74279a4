// SPDX-License-Identifier: BSD-3-Clause
// Computes the norm from the ranks' shares, and scales the gradients that each rank has.
#include "lockstep/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/types/call_origin.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/parallel/distinct_parameters.h"
#include "lockstep/parallel/divided_reduction.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> all_gradients(const DistributedDataParallelBase& model) {
  return optim::gradients_of(distinct_parameters(model));
}

// What this rank contributes to the norm: with the other ranks' parts, each element once.
std::vector<at::Tensor> own_gradients(const DistributedDataParallelBase& model) {
  if (model.group()->size() == 1) return all_gradients(model);
  const auto reduction = model.divided_reduction();
  if (reduction->buckets().plan().empty() && !all_gradients(model).empty()) {
    throw UsageError(model.group()->context("clip_grad"), kNotReduced,
                     remedy_of_not_reduced("clipping"));
  }
  return reduction->own_gradients();
}

// What this rank uses: its share if the means are divided.
std::vector<at::Tensor> used_gradients(const DistributedDataParallelBase& model) {
  return model.divided_reduction()->divides() ? own_gradients(model) : all_gradients(model);
}

// Norms of parts become the norm of the whole.
double combined(const std::vector<double>& norms, double norm_type) {
  double total = 0;
  for (const double norm : norms) {
    if (std::isinf(norm_type)) {
      total = std::isnan(norm) ? norm : std::max(total, norm);  // keeps NaN
    } else {
      total += std::pow(norm, norm_type);
    }
  }
  return std::isinf(norm_type) ? total : std::pow(total, 1 / norm_type);
}

at::Tensor norm_of(const at::Tensor& gradient, double norm_type) {
  const at::Tensor real = gradient.is_complex() ? gradient.abs() : gradient;
  const bool is_half = real.scalar_type() == at::kHalf || real.scalar_type() == at::kBFloat16;
  return at::norm(real, norm_type, is_half ? at::kFloat : real.scalar_type()).to(at::kDouble);
}

// Waits for a device once, not for each gradient.
double norm_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& gradient : gradients) {
    if (gradient.numel() == 0) continue;
    const at::Tensor norm = norm_of(gradient, norm_type);
    norms.push_back(norms.empty() ? norm : norm.to(norms.front().device()));
  }
  if (norms.empty()) return 0;
  const at::Tensor all = at::stack(norms).cpu();
  const auto* const values = all.data_ptr<double>();
  return combined({values, values + all.numel()}, norm_type);
}

// The limit and the type of the norm travel with it: with others, ranks would scale the gradients
// differently, or in a sharded optimizer each would scale a part.
struct OwnNorm {
  double norm;
  double max_norm;
  double norm_type;
};

std::vector<OwnNorm> norms_of_ranks(const OwnNorm& own, ProcessGroup& group) {
  constexpr std::int64_t kNumbers = sizeof(OwnNorm) / sizeof(double);
  const at::Tensor all = at::empty({group.size(), kNumbers}, at::kDouble);
  const at::Tensor mine = at::empty({kNumbers}, at::kDouble);
  std::memcpy(mine.data_ptr(), &own, sizeof own);
  group.all_gather_into_tensor(all, mine).wait();
  std::vector<OwnNorm> norms(static_cast<std::size_t>(group.size()));
  std::memcpy(norms.data(), all.data_ptr(), norms.size() * sizeof(OwnNorm));
  return norms;
}

double norm_over_ranks(const OwnNorm& own, ProcessGroup& group) {
  std::vector<double> norms;
  for (const OwnNorm& of_rank : norms_of_ranks(own, group)) {
    if (of_rank.max_norm != own.max_norm || of_rank.norm_type != own.norm_type) {
      throw UsageError(
          group.context("clip_grad_norm_"),
          fmt::format("max_norm is {} and norm_type {} on this rank, but {} and {} on rank {}",
                      own.max_norm, own.norm_type, of_rank.max_norm, of_rank.norm_type,
                      norms.size()),
          "pass the same on every rank");
    }
    norms.push_back(of_rank.norm);
  }
  return combined(norms, own.norm_type);
}

}  // namespace

double clip_grad_norm_(DistributedDataParallelBase& model, double max_norm, double norm_type,
                       bool error_if_nonfinite) {
  const CallScope scope(CallOrigin::clip_grad_norm);
  const at::NoGradGuard no_grad;
  ProcessGroup& group = *model.group();
  if (!(max_norm >= 0) || !(norm_type > 0)) {
    throw UsageError(group.context("clip_grad_norm_"),
                     fmt::format("max_norm is {} and norm_type {}", max_norm, norm_type),
                     "the first must not be negative, the second must be positive");
  }
  const double norm =
      norm_over_ranks({norm_of(own_gradients(model), norm_type), max_norm, norm_type}, group);
  if (error_if_nonfinite && !std::isfinite(norm)) {
    throw Error(group.context("clip_grad_norm_"),
                fmt::format("the norm of order {} of the gradients is {}, on every rank", norm_type,
                            std::isnan(norm) ? "NaN" : "infinite"),
                "clear the gradients and skip the step, or lower the learning rate; "
                "DistributedDataParallel's check_finite names the parameter");
  }
  const double coefficient = max_norm / (norm + 1e-6);
  if (coefficient >= 1) return norm;
  for (const at::Tensor& gradient : used_gradients(model)) gradient.mul_(coefficient);
  return norm;
}

void clip_grad_value_(DistributedDataParallelBase& model, double clip_value) {
  const at::NoGradGuard no_grad;
  if (!(clip_value >= 0)) {
    throw UsageError(model.group()->context("clip_grad_value_"),
                     fmt::format("clip_value is {}", clip_value), "it must not be negative");
  }
  for (const at::Tensor& gradient : used_gradients(model)) gradient.clamp_(-clip_value, clip_value);
}

}  // namespace lockstep
