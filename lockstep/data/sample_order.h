// SPDX-License-Identifier: BSD-3-Clause
// The order in which an epoch visits the samples: a pure function of (seed, epoch, position), the
// same on every rank and for any number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

// The sample at each position of the epoch. If shuffled, it is torch.randperm(size) from a CPU
// generator with the seed seed + epoch, so it equals Python's order; otherwise it counts up.
std::vector<std::size_t> sample_order(std::size_t size, bool shuffle, std::int64_t seed,
                                      std::int64_t epoch);

// The samples that torch.multinomial draws with these weights, double [N] on the CPU, from the same
// generator: num_samples of them, in the order in which they are drawn.
std::vector<std::size_t> weighted_order(const at::Tensor& weights, std::size_t num_samples,
                                        bool replacement, std::int64_t seed, std::int64_t epoch);

// UsageError that begins with `who` unless 0 <= rank < num_replicas.
void require_rank(const char* who, int num_replicas, int rank);

// How an order's positions are distributed over ranks: rank r takes positions r, r + ranks, r + 2
// ranks, and so on, and all ranks take equally many. If the size is not a multiple of the ranks,
// positions from the front are repeated as often as needed (padding); with drop_last the remainder
// is dropped instead. From a first position other than 0, ranks take turns from there.
struct RankShare {
  std::size_t size = 0;
  int ranks = 1;
  int rank = 0;
  bool drop_last = false;
  // The first position that is shared out; those before it have been taken.
  std::size_t first = 0;

  // The number of samples that each rank takes.
  std::size_t count() const;
  // How many of this rank's first samples are not padding. Summed over all ranks: size -
  // first, or ranks * count() with drop_last.
  std::size_t unpadded_count() const;
  // The position, below size, of this rank's i-th sample.
  std::size_t position(std::size_t i) const;
};

}  // namespace lockstep
