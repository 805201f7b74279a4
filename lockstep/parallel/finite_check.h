// SPDX-License-Identifier: BSD-3-Clause
// Whether all elements of a tensor are finite: neither infinite nor NaN.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Checks a tensor's elements as they are now. On a CPU the constructor does it, in one pass at the
// speed of memory; on a GPU the GPU does it, and passes() waits for it.
class FiniteCheck {
 public:
  // Checks nothing, and passes.
  FiniteCheck() = default;
  // The tensor has a floating or complex type.
  explicit FiniteCheck(const at::Tensor& tensor);

  bool passes() const;

 private:
  bool passes_ = true;
  at::Tensor on_device_;  // one bool, in the place of passes_
};

}  // namespace lockstep
