// SPDX-License-Identifier: BSD-3-Clause
// Public. The values that torch.save writes, as C++ has them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// A Python value: plain data and tensors.
struct TorchValue {
  using List = std::vector<TorchValue>;
  struct Tuple {
    List items;
  };
  // Entries are in Python's order. Keys are strings or integers, without repetition.
  using Dict = std::vector<std::pair<TorchValue, TorchValue>>;

  // std::monostate is None. An OrderedDict is a Dict, and a Parameter a tensor.
  std::variant<std::monostate, bool, std::int64_t, double, std::string, at::Tensor, List, Tuple,
               Dict>
      data;

  // Returns the value at this key; null if this is not a Dict, or lacks the key.
  const TorchValue* find(std::string_view key) const;
};

namespace detail {

// Makes Clang complete TorchValue here. Otherwise it tries to inside the pair of two TorchValues,
// and fails.
inline TorchValue none() {
  return {};
}

}  // namespace detail

inline const TorchValue* TorchValue::find(std::string_view key) const {
  const auto* dict = std::get_if<Dict>(&data);
  if (dict == nullptr) return nullptr;
  for (const auto& [name, value] : *dict) {
    const auto* text = std::get_if<std::string>(&name.data);
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

}  // namespace lockstep
