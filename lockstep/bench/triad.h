// SPDX-License-Identifier: BSD-3-Clause
// STREAM's triad (McCalpin, 1995), a[i] = b[i] + scalar * c[i]: how fast cores can read and write
// memory at best. The yardstick of the collectives in memory.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::bench {

class Triad {
 public:
  // Bytes of the three arrays together; a pass reads two thirds of them and writes one.
  explicit Triad(std::int64_t bytes);

  void pass();

 private:
  std::vector<float> a_;
  std::vector<float> b_;
  std::vector<float> c_;
};

}  // namespace lockstep::bench
