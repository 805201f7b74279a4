// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/bench/triad.h"

#include <algorithm>
#include <cstddef>

namespace lockstep::bench {
namespace {

constexpr float scalar = 0.5F;

[[gnu::always_inline]] inline void run(float* __restrict a, const float* __restrict b,
                                       const float* __restrict c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + scalar * c[i];
}

void run_baseline(float* a, const float* b, const float* c, std::size_t count) {
  run(a, b, c, count);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void run_avx2(float* a, const float* b, const float* c, std::size_t count) {
  run(a, b, c, count);
}

[[gnu::target("avx512f")]] void run_avx512(float* a, const float* b, const float* c,
                                           std::size_t count) {
  run(a, b, c, count);
}
#endif

}  // namespace

Triad::Triad(std::int64_t bytes)
    : a_(static_cast<std::size_t>(
             std::max<std::int64_t>(1, bytes / 3 / static_cast<std::int64_t>(sizeof(float)))),
         0.0F),
      b_(a_.size(), 1.0F),
      c_(a_.size(), 2.0F) {}

void Triad::pass() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f"))
    return run_avx512(a_.data(), b_.data(), c_.data(), a_.size());
  if (__builtin_cpu_supports("avx2")) return run_avx2(a_.data(), b_.data(), c_.data(), a_.size());
#endif
  run_baseline(a_.data(), b_.data(), c_.data(), a_.size());
}

}  // namespace lockstep::bench
