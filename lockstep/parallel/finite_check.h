// SPDX-License-Identifier: BSD-3-Clause
// Checks whether all elements of a tensor are finite: neither infinite nor NaN.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

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

}  // namespace lockstep
