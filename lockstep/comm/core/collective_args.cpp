// SPDX-License-Identifier: BSD-3-Clause
// Encodes the sizes and types of an all_to_all, and finds a pair that does not match.
#include "lockstep/comm/core/collective_args.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr int kTypeBits = 8;

std::int64_t size_of(const at::Tensor& tensor) {
  return tensor.numel() << kTypeBits | static_cast<std::int64_t>(tensor.scalar_type());
}

std::string words(std::int64_t size) {
  const auto type = static_cast<at::ScalarType>(size & ((1 << kTypeBits) - 1));
  return fmt::format("{} {} elements", size >> kTypeBits, c10::toString(type));
}

}  // namespace

std::vector<std::int64_t> exchange_sizes(at::TensorList outputs, at::TensorList inputs) {
  std::vector<std::int64_t> sizes;
  for (const auto& input : inputs) sizes.push_back(size_of(input));
  for (const auto& output : outputs) sizes.push_back(size_of(output));
  return sizes;
}

std::string exchange_fault(std::span<const std::int64_t* const> sizes) {
  const std::size_t ranks = sizes.size();
  for (std::size_t from = 0; from < ranks; ++from) {
    for (std::size_t to = 0; to < ranks; ++to) {
      const std::int64_t given = sizes[from][to];
      const std::int64_t expected = sizes[to][ranks + from];
      if (given == expected) continue;
      return fmt::format(
          "rank {} called it with {} for rank {}, which called it with {} from rank {}; "
          "send and receive sizes and types must match",
          from, words(given), to, words(expected), from);
    }
  }
  return "";
}

}  // namespace lockstep
