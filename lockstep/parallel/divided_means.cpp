// SPDX-License-Identifier: BSD-3-Clause
// What BackwardReduction does if each rank gets only its share of the means.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/backward_reduction.h"

namespace lockstep {

// No rank sees the trailers, or the whole means, of buckets that stay divided.
Findings BackwardReduction::exchange_findings() {
  Findings findings(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) findings.used[i] = parameters_[i].used;
  if (finite_gradients_) {
    for (const int number : finite_gradients_->found()) {
      findings.not_finite[static_cast<std::size_t>(number)] = 1;
    }
  }
  findings.update_codes[static_cast<std::size_t>(updates_.code())] = 1;
  share_findings(findings, *group_);
  if (finite_gradients_) {
    finite_gradients_->found().clear();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (findings.not_finite[i] != 0) finite_gradients_->found().push_back(static_cast<int>(i));
    }
  }
  return findings;
}

// Whether all ranks have the same code of UpdateCount.
//
// A parameter that no rank used keeps the gradient of an earlier step, which is a mean already: the
// optimizer must not average it again.
bool BackwardReduction::settle_shares() {
  const Findings findings = exchange_findings();
  const bool all_are_used = std::ranges::count(findings.used, 0) == 0;
  if (!all_are_used && std::exchange(shares_are_due_, false)) reduce_buckets();
  for (Slot& slot : slots_) settle(slot, &findings);
  return std::ranges::count(findings.update_codes, 1) == 1;
}

Work BackwardReduction::reduce_share(Bucket& bucket) {
  return group_->reduce_scatter_tensor(bucket.means(), bucket.flat(), ReduceOp::mean);
}

void BackwardReduction::reduce_buckets() {
  std::vector<Work> reductions;
  for (Slot& slot : slots_) reductions.push_back(reduce_share(slot.bucket));
  for (Work& reduction : reductions) reduction.wait();
}

bool BackwardReduction::take_over_shares() {
  if (!std::exchange(shares_are_due_, false)) return false;
  for (Slot& slot : slots_) {
    for (int index = 0; index < slot.bucket.size(); ++index) bring_in(slot, index);
  }
  return true;
}

// Only this rank's share of such a gradient is a mean; sums with the rest would be wrong. Anything
// that has written to it since, such as zero_grad(), has changed its version.
void BackwardReduction::refuse_to_add_to_divided(const Parameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  const Bucket& bucket = slots_[static_cast<std::size_t>(parameter.bucket)].bucket;
  if (!gradient.is_same(bucket.gradient(parameter.slot)) ||
      gradient._version() != parameter.divided_version) {
    return;
  }
  const std::string reason =
      "parameter " + parameter.name +
      " would add its gradient to one that is divided among the ranks "
      "(whole_gradients = false). Add up the losses and call backward() once, accumulate under "
      "no_sync(), or call optimizer.zero_grad() before the next backward";
  if (active_) refuse(reason);
  throw UsageError(where() + reason);  // nothing was begun, so the group stays usable
}

// A gradient that was replaced becomes the view again, with its values. Undefined if there is none.
at::Tensor BackwardReduction::bring_in(Slot& slot, int index) {
  const int number = slot.bucket.parameters()[static_cast<std::size_t>(index)];
  at::Tensor& gradient = parameters_[static_cast<std::size_t>(number)].tensor.mutable_grad();
  if (gradient.defined() && !gradient.is_same(slot.bucket.gradient(index))) {
    slot.bucket.take(index, gradient);
    slot.bucket.complete(index);
    gradient = slot.bucket.gradient(index);
  }
  return gradient;
}

std::vector<at::Tensor> BackwardReduction::own_gradients() {
  const at::NoGradGuard no_grad;
  reduce_shares();
  std::vector<at::Tensor> parts;
  for (Slot& slot : slots_) {
    for (int index = 0; index < slot.bucket.size(); ++index) {
      if (bring_in(slot, index).defined()) parts.push_back(slot.bucket.own_part(index));
    }
  }
  return parts;
}

}  // namespace lockstep
