// SPDX-License-Identifier: BSD-3-Clause
// Compares the tensors of two files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/checkpoint/tensor_source.h"

namespace lockstep {

struct TensorDifference {
  enum class Kind { missing, unexpected, shape, dtype, values };
  std::string name;
  Kind kind;
  // For shape and dtype: the values in the first and the second file.
  std::string first;
  std::string second;
  // For values: elements that are not equal, where NaN equals NaN and 0 equals -0.
  std::int64_t differing = 0;
  std::int64_t elements = 0;
  // NaN if an element is NaN in one file only.
  double largest = 0;
  // For integers, the exact largest difference: 64 bits do not fit into a double.
  std::optional<std::uint64_t> largest_integer = std::nullopt;
};

// Returns the differences in the order of the first file, then the tensors that only the second has
// ("unexpected"). Reads one tensor at a time.
std::vector<TensorDifference> differences(const TensorSource& first, const TensorSource& second);

std::string difference_text(const std::vector<TensorDifference>& differences);
std::string difference_json(const std::vector<TensorDifference>& differences);

}  // namespace lockstep
