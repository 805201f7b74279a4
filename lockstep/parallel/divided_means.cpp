// SPDX-License-Identifier: BSD-3-Clause
// What BackwardReduction does if each rank gets only its share of the means.
#include <string>
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
  share_findings(findings, *group_);
  if (finite_gradients_) {
    finite_gradients_->found().clear();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (findings.not_finite[i] != 0) finite_gradients_->found().push_back(static_cast<int>(i));
    }
  }
  return findings;
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
      " would accumulate its gradient onto one of which each rank has only its share "
      "(whole_gradients = false). Call optimizer.zero_grad() before the next backward, and "
      "accumulate under no_sync()";
  if (active_) refuse(reason);
  throw UsageError(where() + reason);  // nothing was begun, so the group stays usable
}

std::vector<at::Tensor> BackwardReduction::own_gradients() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (Slot& slot : slots_) {
    for (int index = 0; index < slot.bucket.size(); ++index) {
      const int number = slot.bucket.parameters()[static_cast<std::size_t>(index)];
      at::Tensor& gradient = parameters_[static_cast<std::size_t>(number)].tensor.mutable_grad();
      if (!gradient.defined()) continue;
      if (!gradient.is_same(slot.bucket.gradient(index))) {
        slot.bucket.take(index, gradient);
        slot.bucket.complete(index);
        gradient = slot.bucket.gradient(index);
      }
      parts.push_back(slot.bucket.own_part(index));
    }
  }
  return parts;
}

}  // namespace lockstep
