// SPDX-License-Identifier: BSD-3-Clause
// How the ranks' elements become one.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };

std::string_view name(ReduceOp op);

// A mean is a sum that is scaled: by what, if the result is to be multiplied by `scale` besides.
inline double scale_over(int ranks, ReduceOp op, double scale) {
  return op == ReduceOp::mean ? scale / ranks : scale;
}

}  // namespace lockstep
