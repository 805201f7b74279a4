// SPDX-License-Identifier: BSD-3-Clause
// Hashes a tensor's bits, to compare tensors between ranks.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep {

// A hash of the elements' bits in index order, independent of the memory layout; never 0. The same
// on every machine of the same byte order. Tensors that differ in one element of up to eight bytes
// always have different hashes, others almost always. Not cryptographic.
std::uint64_t tensor_hash(const at::Tensor& tensor);

}  // namespace lockstep
