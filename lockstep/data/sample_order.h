// SPDX-License-Identifier: BSD-3-Clause
// The order in which an epoch visits the samples: a pure function of (seed, epoch, position), the
// same on every rank, whatever their number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep {

// The sample at each position of the epoch. Shuffled, it is torch.randperm(size) drawn from a CPU
// generator seeded with seed + epoch, so it equals Python's order; otherwise it counts up.
std::vector<std::size_t> sample_order(std::size_t size, bool shuffle, std::int64_t seed,
                                      std::int64_t epoch);

// How the positions of an order are dealt to ranks: rank r takes positions r, r + ranks,
// r + 2 ranks, and so on, and all take equally many. What is missing at the end is taken from the
// front again, as often as needed (padding), or with drop_last the tail that does not go round is
// left out.
struct RankShare {
  std::size_t size = 0;
  int ranks = 1;
  int rank = 0;
  bool drop_last = false;

  // Samples that each rank takes.
  std::size_t count() const;
  // How many of this rank's first samples are not padding. Over all ranks these add up to size, or
  // to ranks * count() with drop_last.
  std::size_t unpadded_count() const;
  // The position, below size, of this rank's i-th sample.
  std::size_t position(std::size_t i) const;
};

}  // namespace lockstep
