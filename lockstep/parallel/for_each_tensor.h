// SPDX-License-Identifier: BSD-3-Clause
// Public. Calls a function with every tensor inside a value, whatever structure a forward takes or
// returns: tensors, tuples, pairs, arrays, vectors and other sequences, optionals, maps (their
// values), and any nesting of these. Numbers, enumerations and strings hold no tensors.
// TorchScript's IValue may hold tensors, tuples, lists and dictionaries. The same for the copies of
// a forward's arguments.
//
// Your own type takes part if its namespace has
//   template <class F> void for_each_tensor(Mine& value, F&& function)
// that calls for_each_tensor(member, function), or function(tensor), for its members.
#pragma once

#include <concepts>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace lockstep {

template <class Value, class Function>
void for_each_tensor(Value& value, Function&& function);

namespace detail {

template <class Value>
concept TupleLike = requires {
  std::tuple_size<Value>::value;
};

template <class Value>
concept MapLike = requires(Value& value) {
  typename Value::mapped_type;
  value.begin()->second;
};

template <class Value>
concept SequenceLike = requires(Value& value) {
  typename Value::value_type;
  value.begin();
  value.end();
};

// std::optional, and c10::optional if that is a different type.
template <class Value>
concept OptionalLike = requires(Value& value) {
  { value.has_value() } -> std::convertible_to<bool>;
  *value;
};

template <class Value>
concept WithoutTensors = std::is_arithmetic_v<Value> || std::is_enum_v<Value> ||
    std::is_null_pointer_v<Value> || std::same_as<Value, std::string>;

struct Ignore {
  void operator()(at::Tensor& /*tensor*/) const {}
};

// Found only by argument-dependent lookup: an overload in the namespace of the value's type.
void for_each_tensor();

template <class Value>
concept KnowsItsTensors = requires(Value& value) {
  for_each_tensor(value, Ignore{});
};

template <class>
inline constexpr bool kUnknown = false;

// Copies of an IValue share the list that it holds, so the function's changes would appear in all
// of them. Each value therefore gets its own list first.
template <class Function>
void for_each_tensor_of(c10::IValue& value, Function&& function) {
  const auto visit = [&](const c10::IValue& element) {
    for_each_tensor_of(const_cast<c10::IValue&>(element), function);
  };
  if (value.isTensor()) {
    function(value.toTensor());
  } else if (value.isTuple()) {
    // A named tuple keeps its type.
    const auto& shared = value.toTupleRef();
    value = c10::ivalue::Tuple::createNamed(shared.elements().vec(), shared.type());
    for (const c10::IValue& element : value.toTupleRef().elements()) visit(element);
  } else if (value.isList()) {
    value = value.toList().copy();
    for (const c10::IValue& element : value.toListRef()) visit(element);
  } else if (value.isGenericDict()) {
    value = value.toGenericDict().copy();
    for (const auto& entry : value.toGenericDict()) visit(entry.value());
  }
}

}  // namespace detail

// Whether for_each_tensor can look into a value.
template <class Value>
concept TensorStructure = std::same_as<Value, at::Tensor> || std::same_as<Value, c10::IValue> ||
    detail::WithoutTensors<Value> || detail::TupleLike<Value> || detail::MapLike<Value> ||
    detail::OptionalLike<Value> || detail::SequenceLike<Value> || detail::KnowsItsTensors<Value>;

template <class Value, class Function>
void for_each_tensor(Value& value, Function&& function) {
  if constexpr (std::same_as<Value, at::Tensor>) {
    function(value);
  } else if constexpr (std::same_as<Value, c10::IValue>) {
    detail::for_each_tensor_of(value, function);
  } else if constexpr (detail::WithoutTensors<Value>) {
  } else if constexpr (detail::TupleLike<Value>) {
    std::apply([&](auto&... members) { (for_each_tensor(members, function), ...); }, value);
  } else if constexpr (detail::MapLike<Value>) {
    for (auto& entry : value) for_each_tensor(entry.second, function);
  } else if constexpr (detail::OptionalLike<Value>) {
    if (value.has_value()) for_each_tensor(*value, function);
  } else if constexpr (detail::SequenceLike<Value>) {
    if constexpr (!detail::WithoutTensors<typename Value::value_type>) {
      for (auto& element : value) for_each_tensor(element, function);
    }
  } else {
    static_assert(detail::kUnknown<Value>,
                  "Lockstep does not know where this type keeps its tensors. Return a tensor, a "
                  "tuple, pair, array, vector, optional or map of tensors, or declare beside your "
                  "type: template <class F> void for_each_tensor(YourType& value, F&& function), "
                  "which calls the function with each of its tensors.");
  }
}

// The type of the copy of an argument that a replica of a DataParallel gets, or that checkpoint()
// keeps. Tensors are handles: copies share their memory.
template <class Argument>
struct CopiedArgument {
  using Copy = std::decay_t<Argument>;
  static_assert(std::copy_constructible<Copy>,
                "DataParallel and checkpoint() copy each argument, and this one cannot be copied. "
                "Pass a shared_ptr, or make it a member of the module.");

  // Returns the copy with the argument's value category and constness.
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
