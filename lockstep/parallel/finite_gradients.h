// SPDX-License-Identifier: BSD-3-Clause
// Finds out whose gradient is not finite, once a reduction shows that one is: a sum with a term
// that is not finite is not finite itself.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include "lockstep/collective/process_group.h"
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

  // What this rank gives to the reduction. Undefined gradients are zeros.
  void contributed(int parameter, const at::Tensor& gradient);
  // Once the bucket has been reduced.
  void reduced(const Bucket& bucket);
  // Once all have been: what is not finite and on which ranks, the same words on every rank; empty
  // if there is nothing. A collective call where there is something, which all ranks know, since
  // they hold the same bits. Afterwards the next backward may come.
  std::string conclude(ProcessGroup& group);

 private:
  std::vector<std::string> names_;
  std::vector<FiniteCheck> contributed_;
  std::vector<int> found_;  // parameters whose reduced gradient is not finite
};

}  // namespace lockstep
