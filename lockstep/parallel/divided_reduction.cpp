// SPDX-License-Identifier: BSD-3-Clause
// Reduces buckets to shares, and exchanges what no rank sees by itself.
#include "lockstep/parallel/divided_reduction.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/bypassing_gradients.h"
#include "lockstep/parallel/reducer_group.h"

namespace lockstep {
namespace {

// By one small all_reduce.
void combine_findings(Findings& findings, ProcessGroup& group) {
  std::vector<std::vector<std::uint8_t>*> parts{&findings.used, &findings.not_finite,
                                                &findings.update_codes};
  std::size_t count = 0;
  for (const auto* part : parts) count += part->size();
  at::Tensor local = at::empty({static_cast<std::int64_t>(count)}, at::kByte);
  auto* byte = local.data_ptr<std::uint8_t>();
  for (const auto* part : parts) byte = std::copy(part->begin(), part->end(), byte);
  const at::Tensor shared = local.to(group.device());
  group.all_reduce(shared, ReduceOp::max).wait();
  local = shared.cpu();
  byte = local.data_ptr<std::uint8_t>();
  for (auto* part : parts) {
    std::copy_n(byte, part->size(), part->begin());
    byte += part->size();
  }
}

}  // namespace

DividedReduction::DividedReduction(GradientBuckets& buckets, ReducerGroup& group,
                                   const BypassingGradients& bypassing)
    : buckets_(buckets),
      group_(group),
      bypassing_(bypassing),
      versions_(buckets.parameters().size(), -1) {}

void DividedReduction::require_reduced(const ErrorContext& caller) const {
  bypassing_.require_reduced(caller);
}

void DividedReduction::require_owner_of_shares() const {
  if (!divides() || buckets_.plan().empty() || expected_) return;
  throw UsageError(group_.context(),
                   "with whole_gradients = false each rank has only a part of the means, and no "
                   "optimizer was made that updates this part only",
                   "make a lockstep::optim optimizer from the wrapped model (Adam optimizer(model, "
                   "1e-3)), or leave whole_gradients true and one_copy_per_host off");
}

Work DividedReduction::reduce(Bucket& bucket) {
  bucket.complete();
  return due_ ? Work() : reduce_share(bucket);
}

Work DividedReduction::reduce_share(Bucket& bucket) {
  return group_->reduce_scatter_tensor(bucket.means(), bucket.flat(), ReduceOp::mean);
}

void DividedReduction::reduce_buckets() {
  std::vector<Work> reductions;
  for (Bucket& bucket : buckets_) reductions.push_back(reduce_share(bucket));
  for (Work& reduction : reductions) reduction.wait();
}

// A parameter that no rank used keeps the gradient of an earlier step, which is a mean already: the
// optimizer must not average it again.
void DividedReduction::share(Findings& findings) {
  combine_findings(findings, *group_);
  const bool all_are_used = std::ranges::count(findings.used, 0) == 0;
  if (!all_are_used && std::exchange(due_, false)) reduce_buckets();
}

void DividedReduction::settle(int parameter) {
  if (!divides()) return;
  const auto number = static_cast<std::size_t>(parameter);
  const at::Tensor& view = buckets_.gradient(parameter);
  const bool is_view = buckets_.parameters()[number].grad().is_same(view);
  versions_[number] = is_view ? static_cast<std::int64_t>(view._version()) : -1;
}

// Only the share of this rank in such a gradient is a mean; sums with the rest would be wrong.
bool DividedReduction::is_unchanged_share(int parameter) const {
  const auto number = static_cast<std::size_t>(parameter);
  const at::Tensor& gradient = buckets_.parameters()[number].grad();
  return gradient.is_same(buckets_.gradient(parameter)) &&
         static_cast<std::int64_t>(gradient._version()) == versions_[number];
}

void DividedReduction::refuse_addition(const std::string& parameter, bool reduction_runs) {
  const std::string cause = "parameter " + parameter +
                            " would add its gradient to one that is divided among the ranks "
                            "(whole_gradients = false)";
  const std::string remedy =
      "add up the losses and call backward() once, accumulate under no_sync(), or call "
      "optimizer.zero_grad() before the next backward";
  if (reduction_runs) group_.refuse(cause, remedy);
  throw UsageError(group_.context(), cause, remedy);
}

void DividedReduction::reduce_shares() {
  if (!due_) return;
  group_.reduce([this] {
    take_over_shares();
    reduce_buckets();
  });
}

void DividedReduction::return_to_buckets() {
  for (Bucket& bucket : buckets_) {
    for (int index = 0; index < bucket.size(); ++index) copy_into_bucket(bucket, index);
  }
}

bool DividedReduction::take_over_shares() {
  if (!std::exchange(due_, false)) return false;
  return_to_buckets();
  return true;
}

// Returns the gradient, undefined if there is none. One that was replaced becomes the view of the
// bucket again, with its values.
at::Tensor DividedReduction::copy_into_bucket(Bucket& bucket, int index) {
  const auto number =
      static_cast<std::size_t>(bucket.parameters()[static_cast<std::size_t>(index)]);
  at::Tensor& gradient = buckets_.parameters()[number].mutable_grad();
  if (gradient.defined() && !gradient.is_same(bucket.gradient(index))) {
    bucket.take(index, gradient);
    bucket.complete(index);
    gradient = bucket.gradient(index);
  }
  return gradient;
}

std::vector<at::Tensor> DividedReduction::own_gradients() {
  const at::NoGradGuard no_grad;
  reduce_shares();
  std::vector<at::Tensor> parts;
  for (Bucket& bucket : buckets_) {
    for (int index = 0; index < bucket.size(); ++index) {
      if (copy_into_bucket(bucket, index).defined()) parts.push_back(bucket.own_part(index));
    }
  }
  return parts;
}

std::string remedy_of_not_reduced(std::string_view what) {
  return fmt::format("call the wrapper, and backward() of its result, before {}", what);
}

}  // namespace lockstep
