// SPDX-License-Identifier: BSD-3-Clause
// The types of parameters that can be updated, and the types of their state and arithmetic.
#pragma once

#include <type_traits>

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace lockstep::optim {

template <class Parameter>
using State = std::conditional_t<std::is_same_v<Parameter, double>, double, float>;

constexpr bool can_update(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kHalf || type == at::kBFloat16;
}

constexpr at::ScalarType state_type(at::ScalarType parameter) {
  return parameter == at::kDouble ? at::kDouble : at::kFloat;
}

// Calls function with an element of the type, which must be one that can_update() takes.
template <class Function>
void with_element_of(at::ScalarType type, const Function& function) {
  switch (type) {
    case at::kDouble:
      return function(double{});
    case at::kHalf:
      return function(c10::Half{});
    case at::kBFloat16:
      return function(c10::BFloat16{});
    default:
      return function(float{});
  }
}

}  // namespace lockstep::optim
