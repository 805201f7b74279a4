// SPDX-License-Identifier: BSD-3-Clause
// The arithmetic of the stand-in for NCCL: in the order of the ranks, half types in float.
#pragma once

#include <cstddef>
#include <vector>

#include <nccl.h>

using Bytes = std::vector<std::byte>;

// Of an element, in bytes.
std::size_t width(ncclDataType_t type);

// Combines so many elements of each input by an operator of NCCL's, into the first. Each element is
// multiplied by the factor before it is added.
void reduce(std::vector<Bytes>& inputs, std::size_t count, ncclDataType_t type, int op,
            double factor);
