// SPDX-License-Identifier: BSD-3-Clause
// Compares models and optimizers between ranks, before a difference causes garbage or a hang: their
// descriptions, and hashes of their tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// One line per tensor, such as "parameter fc.weight: Float [10, 784]". Tensors on different devices
// of one rank are distinguished by ordinal, since cuda:0 here may be cuda:1 there.
std::vector<std::string> describe(std::string_view kind, std::span<const NamedTensor> tensors);

// Collective. Every rank throws the same UsageError if the ranks' lines, which describe a `what`,
// differ; it names the first such line, the rank, and both descriptions. In the usual case of
// agreement only a hash is exchanged.
void check_agreement(ProcessGroup& group, std::string_view who,
                     const std::vector<std::string>& lines, std::string_view what = "model");

// A hash of the elements' bits in index order, independent of the memory layout; never 0. The same
// on every machine of the same byte order. Tensors that differ in one element of up to eight bytes
// always have different hashes, others almost always. Not cryptographic.
std::uint64_t tensor_hash(const at::Tensor& tensor);

// "rank 2", "ranks 0 and 1", "ranks 0, 3 and 5".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace lockstep
