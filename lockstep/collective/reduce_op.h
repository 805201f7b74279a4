// SPDX-License-Identifier: BSD-3-Clause
// How the ranks' elements become one.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };

std::string_view name(ReduceOp op);

}  // namespace lockstep
