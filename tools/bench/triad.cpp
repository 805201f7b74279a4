// SPDX-License-Identifier: BSD-3-Clause
// The triad's loop for several instruction sets and kinds of stores.
#include "tools/bench/triad.h"

#include <algorithm>
#include <cstddef>

#include <ATen/Functions.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::bench {
namespace {

constexpr float kScalar = 0.5F;

[[gnu::always_inline]] inline void run(float* __restrict a, const float* __restrict b,
                                       const float* __restrict c, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) a[i] = b[i] + kScalar * c[i];
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

// Tensors have the alignment that these stores need.
void run_past_cache(float* a, const float* b, const float* c, std::size_t count) {
  std::size_t i = 0;
#if defined(__x86_64__)
  const __m128 factor = _mm_set1_ps(kScalar);
  for (; i + 4 <= count; i += 4) {
    _mm_stream_ps(a + i, _mm_add_ps(_mm_load_ps(b + i), _mm_mul_ps(factor, _mm_load_ps(c + i))));
  }
  _mm_sfence();
#endif
  run(a + i, b + i, c + i, count - i);
}

}  // namespace

Triad::Triad(std::int64_t bytes)
    : a_(at::zeros({std::max<std::int64_t>(1, bytes / 3 / 4)}, at::kFloat)),
      b_(at::ones_like(a_)),
      c_(at::ones_like(a_)) {}

void Triad::pass(Stores stores) {
  auto* const a = a_.data_ptr<float>();
  const auto* const b = b_.data_ptr<float>();
  const auto* const c = c_.data_ptr<float>();
  const auto count = static_cast<std::size_t>(a_.numel());
  if (stores == Stores::past_cache) return run_past_cache(a, b, c, count);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return run_avx512(a, b, c, count);
  if (__builtin_cpu_supports("avx2")) return run_avx2(a, b, c, count);
#endif
  run_baseline(a, b, c, count);
}

}  // namespace lockstep::bench
