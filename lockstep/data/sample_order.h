// SPDX-License-Identifier: BSD-3-Clause
// The order in which an epoch visits the samples: a pure function of (seed, epoch, position), the
// same on every rank and for any number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// Returns the sample at each position of the epoch. If shuffled, the order is torch.randperm(size)
// from a CPU generator with the seed seed + epoch, so it equals Python's; otherwise it counts up.
std::vector<std::size_t> sample_order(std::size_t size, bool shuffle, std::int64_t seed,
                                      std::int64_t epoch);

// Returns the `num_samples` samples that torch.multinomial draws from the same generator, in the
// order in which they are drawn. `weights`: double [N] on the CPU.
std::vector<std::size_t> weighted_order(const at::Tensor& weights, std::size_t num_samples,
                                        bool replacement, std::int64_t seed, std::int64_t epoch);

// Returns FNV-1a of the bytes, for a comparison between ranks: the same on every machine of one
// byte order.
std::uint64_t order_hash(std::span<const std::byte> bytes);

}  // namespace lockstep
