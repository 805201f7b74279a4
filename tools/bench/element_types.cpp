// SPDX-License-Identifier: BSD-3-Clause
// The table of types and names.
#include "tools/bench/element_types.h"

#include <algorithm>

namespace lockstep::bench {

const std::map<std::string, at::ScalarType>& element_types() {
  static const std::map<std::string, at::ScalarType> types{
      {"float", at::kFloat},       {"double", at::kDouble}, {"half", at::kHalf},
      {"bfloat16", at::kBFloat16}, {"int32", at::kInt},     {"int64", at::kLong},
      {"uint8", at::kByte},        {"bool", at::kBool}};
  return types;
}

const std::string& name_of(at::ScalarType type) {
  return std::ranges::find(element_types(), type, [](const auto& named) { return named.second; })
      ->first;
}

}  // namespace lockstep::bench
