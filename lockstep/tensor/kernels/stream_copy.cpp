// SPDX-License-Identifier: BSD-3-Clause
// Copies by non-temporal stores where the processor is an x86-64.
#include "lockstep/tensor/kernels/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace lockstep {
namespace {

#if defined(__x86_64__)
constexpr std::size_t kLine = 64;

// One line at a time, since stores that bypass the caches leave the core in whole lines.
void stream_lines(std::byte* to, const std::byte* from, std::size_t lines) {
  for (; lines > 0; --lines, to += kLine, from += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* target = reinterpret_cast<__m128i*>(to);
    const __m128i first = _mm_loadu_si128(source);
    const __m128i second = _mm_loadu_si128(source + 1);
    const __m128i third = _mm_loadu_si128(source + 2);
    const __m128i fourth = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, first);
    _mm_stream_si128(target + 1, second);
    _mm_stream_si128(target + 2, third);
    _mm_stream_si128(target + 3, fourth);
  }
}
#endif

}  // namespace

void stream_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  const std::size_t past_line = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(bytes, (kLine - past_line) % kLine);
  const std::size_t lines = (bytes - head) / kLine;
  const std::size_t tail = head + lines * kLine;
  std::memcpy(target, source, head);
  stream_lines(target + head, source + head, lines);
  std::memcpy(target + tail, source + tail, bytes - tail);
#else
  std::memcpy(to, from, bytes);
#endif
}

void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace lockstep
