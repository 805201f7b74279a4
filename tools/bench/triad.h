// SPDX-License-Identifier: BSD-3-Clause
// STREAM's triad (McCalpin, 1995), a[i] = b[i] + scalar * c[i]: the highest rate at which cores
// read and write memory. The memory bound for collectives.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::bench {

class Triad {
 public:
  // Plain stores fetch each line of a[] before writing it, one array more than the triad counts.
  // Stores past the cache avoid that, but are slower for arrays that fit into the cache.
  enum class Stores : std::uint8_t { plain, past_cache };

  // The size of the three arrays together; a pass reads two thirds of it and writes one third.
  explicit Triad(std::int64_t bytes);

  void pass(Stores stores);

 private:
  at::Tensor a_;
  at::Tensor b_;
  at::Tensor c_;
};

}  // namespace lockstep::bench
