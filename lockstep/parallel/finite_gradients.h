// SPDX-License-Identifier: BSD-3-Clause
// Finds the ranks whose gradients are not finite, once a sum of gradients is not: a sum is not
// finite if one of its terms is not.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/bucket.h"
#include "lockstep/parallel/finite_check.h"

namespace lockstep {

// Gradients have infinite or NaN elements. Thrown by backward on every rank, when all gradients
// have been reduced: the group and the model can be used again. Clear the gradients before the next
// backward, and take no step with them.
class NonFiniteGradient : public Error {
 public:
  using Error::Error;
};

// For training in one process, after backward and before the optimizer's step: NonFiniteGradient,
// which names the parameters, if the module has such gradients. With DistributedDataParallel set
// .check_finite, which names the rank as well.
void check_finite_gradients(const torch::nn::Module& module);

// What a reducer knows of the gradients of one backward. Its parameters are counted from 0.
class FiniteGradients {
 public:
  explicit FiniteGradients(std::vector<std::string> parameters);

  // Checks what this rank contributes to the reduction. Undefined gradients count as zeros.
  void contributed(int parameter, const at::Tensor& gradient);
  // Checks the sums of a bucket that has been reduced.
  void reduced(const Bucket& bucket);
  // Call it when all buckets have been reduced. Returns what is not finite and on which ranks, in
  // the same words on every rank; empty if all is finite. It is a collective call only if a sum is
  // not finite: every rank sees that, since all have the same bits. Afterwards this object is ready
  // for the next backward.
  std::string conclude(ProcessGroup& group);

 private:
  std::vector<std::string> names_;
  std::vector<FiniteCheck> contributed_;
  std::vector<int> found_;  // parameters whose reduced gradient is not finite
};

}  // namespace lockstep
