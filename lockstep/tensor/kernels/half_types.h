// SPDX-License-Identifier: BSD-3-Clause
// Conversions between float and 16-bit types without branches, so that compilers vectorize loops of
// them. They round to the nearest, ties to even, as c10's do.
#pragma once

#include <bit>
#include <cstdint>

namespace lockstep {

// The bits of c10::Half and c10::BFloat16. Compilers do not vectorize loops that store structs.
enum class HalfBits : std::uint16_t {};
enum class BFloat16Bits : std::uint16_t {};

// A conditional expression that stays one.
[[gnu::always_inline]] inline std::uint32_t select(bool condition, std::uint32_t yes,
                                                   std::uint32_t no) {
  return no ^ ((yes ^ no) & (0U - static_cast<std::uint32_t>(condition)));
}

[[gnu::always_inline]] inline float widen(BFloat16Bits value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

[[gnu::always_inline]] inline float widen(HalfBits value) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  const auto bits = static_cast<std::uint32_t>(value);
  const std::uint32_t exponent = bits & 0x7c00;
  const std::uint32_t magnitude = (bits & 0x7fff) << 13;
  const float multiple = static_cast<float>(static_cast<std::int32_t>(bits & 0x3ff));
  const auto subnormal = std::bit_cast<std::uint32_t>(multiple * 0x1p-24F);
  const std::uint32_t finite = select(exponent == 0, subnormal, magnitude + kRebias);
  const std::uint32_t result = select(exponent == 0x7c00, magnitude | 0x7f800000, finite);
  return std::bit_cast<float>(result | (bits & 0x8000) << 16);
}

template <class T>
T narrow(float value);

template <>
[[gnu::always_inline]] inline BFloat16Bits narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<BFloat16Bits>(select(nan, 0x7fc0, rounded));
}

template <>
[[gnu::always_inline]] inline HalfBits narrow(float value) {
  constexpr std::uint32_t kRebias = (127 - 15) << 23;
  constexpr std::uint32_t kSmallestNormal = (127 - 14) << 23;
  constexpr std::uint32_t kTooLarge = (127 + 16) << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t normal = (magnitude - kRebias + 0xfff + (magnitude >> 13 & 1)) >> 13;
  // Subnormal numbers are multiples of 2^-24, the unit in the last place of 0.5.
  const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(shifted) - std::bit_cast<std::uint32_t>(0.5F);
  const std::uint32_t finite = select(magnitude < kSmallestNormal, subnormal, normal);
  const std::uint32_t infinite = select(magnitude > 0x7f800000, 0x7e00, 0x7c00);
  const std::uint32_t result = select(magnitude < kTooLarge, finite, infinite);
  return static_cast<HalfBits>(result | (bits >> 16 & 0x8000));
}

}  // namespace lockstep
