// SPDX-License-Identifier: BSD-3-Clause
// Lays gradients out one after another, and moves them in and out of `.grad`.
#include "lockstep/train/gradient_layout.h"

#include <string>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/strides.h>
#include <fmt/format.h>

#include "lockstep/parallel/distinct_parameters.h"

namespace lockstep {
namespace {

constexpr std::int64_t kAlignedElements = 16;  // parameters do not share cache lines

// The part of a flat tensor that has the shape of the parameter, as a tensor that autograd does not
// know to be a view: optimizer.zero_grad() detaches gradients in place, which it refuses for views.
at::Tensor part_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& parameter) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::int64_t start = flat.storage_offset() + offset;
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), start);
  }
  return flat.as_strided(parameter.sizes(), c10::contiguous_strides(parameter.sizes()), start);
}

// An undefined value counts as +0, which is added too: -0 then becomes +0 on every rank.
void put(const at::Tensor& place, const at::Tensor& value, bool adds) {
  if (value.defined()) {
    adds ? place.add_(value) : place.copy_(value);
  } else {
    adds ? place.add_(0) : place.zero_();
  }
}

}  // namespace

GradientLayout::GradientLayout(const torch::nn::Module& module, int measured_ranks,
                               const ErrorContext& caller)
    : measured_ranks_(measured_ranks) {
  for (const auto& [name, parameter] : distinct_named_parameters(module)) {
    if (!parameter.requires_grad()) continue;
    const at::Tensor first = parameters_.empty() ? parameter : parameters_.front();
    if (!parameter.is_floating_point() || parameter.scalar_type() != first.scalar_type() ||
        parameter.device() != first.device()) {
      throw UsageError(
          caller,
          fmt::format("parameter {} is {} on {} and the first one {} on {}; with microbatches, "
                      "gradients are summed in one tensor",
                      name, c10::toString(parameter.scalar_type()), parameter.device().str(),
                      c10::toString(first.scalar_type()), first.device().str()),
          "give all trained parameters one floating type and one device");
    }
    parameters_.push_back(parameter);
    offsets_.push_back(first_count_);
    first_count_ = (first_count_ + parameter.numel() + kAlignedElements - 1) / kAlignedElements *
                   kAlignedElements;
  }
  if (parameters_.empty()) {
    throw UsageError(caller, "all parameters are frozen", "unfreeze one at least");
  }
}

void GradientLayout::require_same_parameters(const torch::nn::Module& module,
                                             const ErrorContext& caller) const {
  std::size_t trained = 0;
  for (const auto& [name, parameter] : distinct_named_parameters(module)) {
    if (!parameter.requires_grad()) continue;
    const bool is_known = trained < parameters_.size() && parameters_[trained].is_same(parameter);
    if (!is_known) {
      throw UsageError(caller,
                       fmt::format("parameter {}, or one before it, was frozen, unfrozen or "
                                   "replaced within an epoch",
                                   name),
                       "do so between epochs, in FitOptions::begin_epoch");
    }
    ++trained;
  }
  if (trained == parameters_.size()) return;
  throw UsageError(caller,
                   fmt::format("{} of {} trained parameters were frozen within an epoch",
                               parameters_.size() - trained, parameters_.size()),
                   "do so between epochs, in FitOptions::begin_epoch");
}

void GradientLayout::take_gradients(const std::vector<at::Tensor>& parameters,
                                    const at::Tensor& loss, const at::Tensor& to, bool adds,
                                    const ErrorContext& caller) const {
  at::Tensor counts = at::zeros({static_cast<std::int64_t>(parameters_.size())}, at::kFloat);
  auto* const count = counts.data_ptr<float>();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& gradient = parameters[i].mutable_grad();
    if (gradient.defined() && gradient.layout() != at::kStrided) {
      throw UsageError(caller,
                       fmt::format("parameter {} of {} has a sparse gradient, which microbatches "
                                   "cannot sum",
                                   i, parameters.size()),
                       "make the layer without the option sparse");
    }
    count[i] = gradient.defined() ? 1 : 0;
    put(part_like(to, offsets_[i], parameters[i]), gradient, adds);
    gradient.reset();
  }
  put(to.narrow(0, first_count_, counts.numel()), counts.to(to.options()), adds);
  put(loss_in(to), loss, adds);
}

void GradientLayout::set_gradients(const at::Tensor& sum, const at::Tensor& numbers) const {
  const auto* const count = numbers.data_ptr<float>();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (count[i] > 0) {
      parameters_[i].mutable_grad() = part_like(sum, offsets_[i], parameters_[i]);
    }
  }
}

NotFinite GradientLayout::not_finite_in(const at::Tensor& flat) const {
  NotFinite found(parameters_.size());
  if (FiniteCheck(flat.narrow(0, 0, first_count_)).passes()) return found;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    found[i] = FiniteCheck(part_like(flat, offsets_[i], parameters_[i])).passes() ? 0 : 1;
  }
  return found;
}

void GradientLayout::clear_messages(const at::Tensor& flat) const {
  flat.narrow(0, leaving(), elements() - leaving()).zero_();
}

void GradientLayout::set_load(const at::Tensor& flat, int rank, const RankLoad& load) const {
  flat.narrow(0, load_of(rank), kNumbersOfLoad)
      .copy_(at::tensor({load.computing, load.data, load.exchange}));
}

at::Tensor GradientLayout::numbers_in(const at::Tensor& sum) const {
  return sum.narrow(0, first_count_, elements() - first_count_)
      .to(at::kCPU, at::kFloat)
      .contiguous();
}

bool GradientLayout::all_leave(const at::Tensor& numbers) const {
  return numbers.data_ptr<float>()[leaving() - first_count_] > 0;
}

std::vector<RankLoad> GradientLayout::loads(const at::Tensor& numbers, double scale) const {
  std::vector<RankLoad> loads;
  for (int rank = 0; rank < measured_ranks_; ++rank) {
    const float* const of_rank = numbers.data_ptr<float>() + (load_of(rank) - first_count_);
    loads.push_back({.computing = of_rank[0] * scale,
                     .data = of_rank[1] * scale,
                     .exchange = of_rank[2] * scale});
  }
  return loads;
}

}  // namespace lockstep
