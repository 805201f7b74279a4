// SPDX-License-Identifier: BSD-3-Clause
// STREAM's triad (McCalpin, 1995), a[i] = b[i] + scalar * c[i]: how fast cores can read and write
// memory at best. The yardstick of the collectives in memory.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::bench {

class Triad {
 public:
  // With plain stores, each line of a[] is fetched before it is written, which is one array more
  // than the triad counts; stores past the cache do without, but are slower for arrays that fit.
  enum class Stores : std::uint8_t { plain, past_cache };

  // Bytes of the three arrays together; a pass reads two thirds of them and writes one.
  explicit Triad(std::int64_t bytes);

  void pass(Stores stores);

 private:
  at::Tensor a_;
  at::Tensor b_;
  at::Tensor c_;
};

}  // namespace lockstep::bench
