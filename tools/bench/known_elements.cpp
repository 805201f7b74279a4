// SPDX-License-Identifier: BSD-3-Clause
// The table of types; fills tensors by formulas of rank, position and round; counts deviations.
#include "tools/bench/known_elements.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include <ATen/Dispatch.h>

namespace lockstep::bench {
namespace {

// The result of a reduction that leaves the type's range, for non-negative numbers.
template <class Type>
double within_range(double value) {
  if constexpr (std::is_integral_v<Type>) {
    const double remainder = std::fmod(value, 0x1p64);
    return static_cast<double>(static_cast<Type>(static_cast<std::uint64_t>(remainder)));
  } else {
    const bool leaves = value > static_cast<double>(std::numeric_limits<Type>::max());
    return leaves ? std::numeric_limits<double>::infinity() : value;
  }
}

}  // namespace

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

double known_element(Reduction reduction, int rank, std::int64_t position, int round) {
  const std::int64_t mixed = position + round;
  // For any number of ranks, both "or" and "and" of the elements take both values.
  if (reduction.type == at::kBool) return mixed % 7 > rank % 6 ? 1 : 0;
  // Products of larger numbers would leave the range of the small types.
  if (reduction.op == ReduceOp::product) return 1 + static_cast<double>((mixed + rank) % 2);
  return static_cast<double>(mixed % 7 + rank + 1);
}

double known_reduction(Reduction reduction, int ranks, std::int64_t position, int round) {
  double result = known_element(reduction, 0, position, round);
  for (int rank = 1; rank < ranks; ++rank) {
    const double next = known_element(reduction, rank, position, round);
    switch (reduction.op) {
      case ReduceOp::sum:
      case ReduceOp::mean:
        result += next;
        break;
      case ReduceOp::min:
        result = std::min(result, next);
        break;
      case ReduceOp::max:
        result = std::max(result, next);
        break;
      case ReduceOp::product:
        result *= next;
        break;
    }
  }
  return reduction.op == ReduceOp::mean ? result / ranks : result;
}

void fill(const at::Tensor& tensor, const Elements& elements) {
  AT_DISPATCH_ALL_TYPES_AND3(at::kHalf, at::kBFloat16, at::kBool, tensor.scalar_type(), "fill",
                             [&] {
                               auto* data = tensor.data_ptr<scalar_t>();
                               for (std::int64_t i = 0; i < tensor.numel(); ++i) {
                                 data[i] = static_cast<scalar_t>(static_cast<float>(elements(i)));
                               }
                             });
}

std::int64_t count_wrong(const at::Tensor& tensor, const Elements& elements, int roundings) {
  std::int64_t wrong = 0;
  AT_DISPATCH_ALL_TYPES_AND3(
      at::kHalf, at::kBFloat16, at::kBool, tensor.scalar_type(), "count_wrong", [&] {
        const auto* data = tensor.data_ptr<scalar_t>();
        const double allowed =
            std::is_integral_v<scalar_t>
                ? 0
                : roundings * static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
        for (std::int64_t i = 0; i < tensor.numel(); ++i) {
          const double right = within_range<scalar_t>(elements(i));
          const double is = static_cast<double>(data[i]);
          // Negated so that NaN counts as wrong.
          if (is != right && !(std::abs(is - right) <= allowed * std::abs(right))) ++wrong;
        }
      });
  return wrong;
}

}  // namespace lockstep::bench
