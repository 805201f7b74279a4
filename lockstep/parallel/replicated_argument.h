// SPDX-License-Identifier: BSD-3-Clause
// An argument of forward, copied for every replica.
#pragma once

#include <concepts>
#include <tuple>
#include <type_traits>

#include "lockstep/parallel/for_each_tensor.h"

namespace lockstep {

// The type of a replica's copy. Tensors are handles: the copies share their memory until they are
// split.
template <class Argument>
struct ReplicatedArgument {
  using Copy = std::decay_t<Argument>;
  static_assert(std::copy_constructible<Copy>,
                "DataParallel gives every replica a copy of each argument, and this one cannot be "
                "copied. Pass a shared_ptr, or make it a member of the module.");

  // The copy as the argument was passed: as an lvalue or an rvalue, const or not.
  static decltype(auto) pass(Copy& copy) {
    if constexpr (std::is_array_v<std::remove_reference_t<Argument>>) {
      return (copy);  // decayed to a pointer
    } else {
      return static_cast<Argument&&>(copy);
    }
  }
};

// Calls the function with every tensor inside the arguments. Arguments of unknown structure have
// none.
template <class... Copies, class Function>
void for_each_input(std::tuple<Copies...>& arguments, Function&& function) {
  const auto visit = [&]<class Value>(Value& value) {
    if constexpr (TensorStructure<Value>) for_each_tensor(value, function);
  };
  std::apply([&](Copies&... copies) { (visit(copies), ...); }, arguments);
}

}  // namespace lockstep
