// SPDX-License-Identifier: BSD-3-Clause
// The conversions of 16-bit types against libtorch's, for every such number and those between.
#include "lockstep/tensor/kernels/half_types.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

constexpr int kNumbers = 1 << 16;

// Every number of a 16-bit type, by its bits.
at::Tensor every_number(at::ScalarType type) {
  return at::arange(kNumbers, at::kInt).to(at::kShort).view(type);
}

template <class Bits>
void expect_widened_exactly(at::ScalarType type) {
  const at::Tensor expected = every_number(type).to(at::kFloat);
  for (int bits = 0; bits < kNumbers; ++bits) {
    const float wide = widen(static_cast<Bits>(bits));
    const float wanted = expected.data_ptr<float>()[bits];
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
    } else {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(wide), std::bit_cast<std::uint32_t>(wanted)) << bits;
    }
  }
}

// Each number, the middle between it and the next, and the floats beside that middle.
template <class Bits>
void expect_rounded_to_nearest(at::ScalarType type) {
  const at::Tensor numbers = every_number(type).to(at::kFloat);
  const at::Tensor middles = (numbers.to(at::kDouble) + numbers.roll(-1).to(at::kDouble)) / 2;
  const at::Tensor middle = middles.to(at::kFloat);
  const at::Tensor floats =
      at::cat({numbers, middle, at::nextafter(middle, middle.new_full({1}, INFINITY)),
               at::nextafter(middle, middle.new_full({1}, -INFINITY))});
  const at::Tensor expected = floats.to(type).view(at::kShort);
  for (std::int64_t i = 0; i < floats.numel(); ++i) {
    const float value = floats.data_ptr<float>()[i];
    const Bits rounded = narrow<Bits>(value);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(widen(rounded))) << i;
    } else {
      const auto wanted = static_cast<std::uint16_t>(expected.data_ptr<std::int16_t>()[i]);
      ASSERT_EQ(static_cast<std::uint16_t>(rounded), wanted) << value;
    }
  }
}

TEST(HalfTypes, AreWidenedExactly) {
  expect_widened_exactly<HalfBits>(at::kHalf);
  expect_widened_exactly<BFloat16Bits>(at::kBFloat16);
}

TEST(HalfTypes, AreRoundedToTheNearest) {
  expect_rounded_to_nearest<HalfBits>(at::kHalf);
  expect_rounded_to_nearest<BFloat16Bits>(at::kBFloat16);
}

TEST(HalfTypes, NumbersBeyondHalfsRangeBecomeInfinite) {
  EXPECT_EQ(static_cast<int>(narrow<HalfBits>(65519.9F)), 0x7bff);
  for (const float large : {65520.F, 65536.F, 1e30F, INFINITY}) {
    EXPECT_EQ(static_cast<int>(narrow<HalfBits>(large)), 0x7c00) << large;
    EXPECT_EQ(static_cast<int>(narrow<HalfBits>(-large)), 0xfc00) << large;
  }
}

}  // namespace
}  // namespace lockstep
