// SPDX-License-Identifier: BSD-3-Clause
// Finds the ranks with non-finite gradients after a sum of gradients has turned out non-finite. A
// sum is not finite if one of its terms is not.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/finite_check.h"

namespace lockstep {

// The findings about the gradients of one backward. Parameters are counted from 0.
class FiniteGradients {
 public:
  explicit FiniteGradients(std::vector<std::string> parameters);

  // Checks this rank's contribution to the reduction. Undefined gradients count as zeros.
  void contributed(int parameter, const at::Tensor& gradient);
  // Checks what a reduction has left in the bucket.
  void reduced(const Bucket& bucket);
  // The parameters whose reduced gradients are not finite. They must be the same on every rank
  // before conclude() is called.
  std::vector<int>& found() { return found_; }
  // Call it after all buckets have been reduced. Returns which gradients are not finite and on
  // which ranks, with the same text on every rank; empty if all are finite. Collective only if a
  // sum is not finite. Afterwards this object is ready for the next backward.
  std::string conclude(ProcessGroup& group);

 private:
  std::vector<std::string> names_;
  std::vector<FiniteCheck> contributed_;
  std::vector<int> found_;  // parameters with a non-finite reduced gradient
};

}  // namespace lockstep
