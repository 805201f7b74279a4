// SPDX-License-Identifier: BSD-3-Clause
// Whether all elements of a tensor are finite: neither infinite nor NaN.
#pragma once

#include <ATen/core/Tensor.h>

namespace lockstep {

// Of a tensor's elements as they are now. On a CPU it is computed at once, in one pass at the speed
// of memory; on a GPU by the GPU, and passes() waits for it.
class FiniteCheck {
 public:
  // Of no elements, which passes.
  FiniteCheck() = default;
  // Of floating or complex type.
  explicit FiniteCheck(const at::Tensor& tensor);

  bool passes() const;

 private:
  bool passes_ = true;
  at::Tensor on_device_;  // one bool, in the place of passes_
};

}  // namespace lockstep
