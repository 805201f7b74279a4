// SPDX-License-Identifier: BSD-3-Clause
// An argument of forward that is moved to the module's device.
#pragma once

#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>

#include "lockstep/parallel/for_each_tensor.h"
#include "lockstep/parallel/to_device.h"

namespace lockstep {

// Holds a copy of the argument with its tensors on the device; arguments without tensors, or of
// unknown structure, pass through. get() returns an lvalue or rvalue, as the argument was.
template <class Argument>
class MovedInput {
  using Plain = std::remove_cvref_t<Argument>;
  static constexpr bool kMoves = TensorStructure<Plain> && !detail::WithoutTensors<Plain>;

 public:
  MovedInput(Argument&& argument, at::Device device) : value_(std::forward<Argument>(argument)) {
    if constexpr (kMoves) {
      for_each_tensor(value_, [device](at::Tensor& tensor) {
        if (tensor.defined()) tensor = to_device(tensor, device);
      });
    }
  }

  Argument&& get() { return static_cast<Argument&&>(value_); }

 private:
  std::conditional_t<kMoves, Plain, Argument&&> value_;
};

}  // namespace lockstep
