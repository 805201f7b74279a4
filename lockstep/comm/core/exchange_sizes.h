// SPDX-License-Identifier: BSD-3-Clause
// The sizes that ranks send and expect in an all_to_all, and whether they match.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// What this rank sends to rank 0, rank 1 and so on, then what it expects from each of them. Each
// number encodes a count of elements and their type.
std::vector<std::int64_t> exchange_sizes(at::TensorList outputs, at::TensorList inputs);

// sizes[r] are rank r's exchange_sizes(). Describes, for a message, a pair of ranks whose sizes do
// not match; "" if all match.
std::string exchange_fault(std::span<const std::int64_t* const> sizes);

}  // namespace lockstep
