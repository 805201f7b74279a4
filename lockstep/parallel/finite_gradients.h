// SPDX-License-Identifier: BSD-3-Clause
// Finds infinite and NaN elements in gradients, and the ranks that contributed them. A sum is not
// finite if one of its terms is not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Checks a tensor's current elements. On a CPU the constructor checks them, in one pass at memory
// speed; on a GPU the GPU does, and passes() waits for it.
class FiniteCheck {
 public:
  // Checks nothing, and passes.
  FiniteCheck() = default;
  // The tensor has a floating-point or complex type.
  explicit FiniteCheck(const at::Tensor& tensor);

  bool passes() const;

 private:
  bool passes_ = true;
  at::Tensor on_device_;  // one bool, instead of passes_
};

// Whether all of them are finite. Waits for a device once, not for each tensor. On GPUs it may
// write the same elements into them again.
bool all_finite(const std::vector<at::Tensor>& tensors);

// Joins what is said about each parameter. Takes only the first few, since one NaN in a loss makes
// all gradients NaN.
std::string first_of(const std::vector<std::string>& findings);

// For each parameter, 1 if its gradient is not finite, or 0.
using NotFinite = std::vector<std::uint8_t>;

// Collective. Returns which gradients are not finite and on which ranks, with the same text on
// every rank. `found` tells it about the sums, and must be the same on every rank; `own` about what
// this rank has contributed.
std::string describe_not_finite(const std::vector<std::string>& parameters, const NotFinite& found,
                                const NotFinite& own, ProcessGroup& group);

class Bucket;

// The findings about the gradients of one backward. Parameters are counted from 0.
class FiniteGradients {
 public:
  explicit FiniteGradients(std::vector<std::string> parameters);

  // Checks this rank's contribution to the reduction. Undefined gradients count as zeros.
  void contributed(int parameter, const at::Tensor& gradient);
  // Checks what a reduction has left in the bucket.
  void reduced(const Bucket& bucket);
  // About the reduced gradients. It must be the same on every rank before conclude() is called.
  NotFinite& found() { return found_; }
  // Call it after all buckets have been reduced. Returns which gradients are not finite and on
  // which ranks, with the same text on every rank; empty if all are finite. Collective only if a
  // sum is not finite. Afterwards this object is ready for the next backward.
  std::string conclude(ProcessGroup& group);

 private:
  std::vector<std::string> names_;
  std::vector<FiniteCheck> contributed_;
  NotFinite found_;
};

}  // namespace lockstep
