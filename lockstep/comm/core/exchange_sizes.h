// SPDX-License-Identifier: BSD-3-Clause
// What the ranks give each other in an all_to_all, and whether it fits together.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// What a rank gives to rank 0, rank 1 and so on, and then what it expects from them: a number each
// for how many elements of which type.
std::vector<std::int64_t> exchange_sizes(at::TensorList outputs, at::TensorList inputs);

// Of what rank r has at sizes[r]: which rank expects something else than another gives, for a
// message; "" if none does.
std::string exchange_fault(std::span<const std::int64_t* const> sizes);

}  // namespace lockstep
