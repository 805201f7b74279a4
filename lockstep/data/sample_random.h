// SPDX-License-Identifier: BSD-3-Clause
// Random numbers that belong to one sample in one epoch: they do not depend on the rank or thread
// that draws them, nor on what was drawn for other samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace lockstep {

// A UniformRandomBitGenerator: SplitMix64, whose state begins as a hash of its key.
class SampleRandom {
 public:
  using result_type = std::uint64_t;

  // `stream` separates the transforms that draw for the same sample.
  SampleRandom(std::int64_t seed, std::int64_t epoch, std::size_t sample, std::size_t stream) {
    for (const std::uint64_t part :
         {static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(epoch),
          static_cast<std::uint64_t>(sample), static_cast<std::uint64_t>(stream)}) {
      state_ = (*this)() ^ part;
    }
  }

  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<result_type>::max(); }
  result_type operator()() {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t mixed = state_;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
  }

  // From 0 to 1, without 1.
  double uniform() { return static_cast<double>((*this)() >> 11) * 0x1p-53; }
  double uniform(double least, double most) { return least + (most - least) * uniform(); }
  // From 0 to count - 1. `count` is positive and below 2^53.
  std::int64_t below(std::int64_t count) {
    return static_cast<std::int64_t>(uniform() * static_cast<double>(count));
  }

 private:
  std::uint64_t state_ = 0;
};

}  // namespace lockstep
