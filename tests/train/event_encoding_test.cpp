// SPDX-License-Identifier: BSD-3-Clause
// Checksums against published values, and messages byte by byte.
#include "lockstep/train/event_encoding.h"

#include <array>
#include <numeric>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs.
TEST(Crc32c, HasTheKnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43u);
  std::string ascending(32, '\0');
  std::iota(ascending.begin(), ascending.end(), '\0');
  EXPECT_EQ(crc32c(ascending), 0x46DD794Eu);
  EXPECT_EQ(crc32c(std::string(ascending.rbegin(), ascending.rend())), 0x113FDB5Cu);
  EXPECT_EQ(crc32c(""), 0u);
}

template <std::size_t N>
std::string bytes(const char (&text)[N]) {
  return {text, N - 1};
}

// As Python's TensorBoard 2.21 wrote it: RecordWriter(file).write(b"abc").
TEST(EventRecord, FramesDataWithMaskedChecksums) {
  EXPECT_EQ(event_record("abc"),
            bytes("\x03\x00\x00\x00\x00\x00\x00\x00\xB0\x99\x49\x0E\x61\x62\x63\x6E\x57\xF1\x21"));
}

TEST(EventMessage, EncodesFields) {
  EXPECT_EQ(EventMessage().integer(2, 300).encoded(), bytes("\x10\xAC\x02"));
  EXPECT_EQ(EventMessage().integer(1, -1).encoded(),
            bytes("\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"));
  EXPECT_EQ(EventMessage().real(1, 1.5).encoded(), bytes("\x09\0\0\0\0\0\0\xF8\x3F"));
  EXPECT_EQ(EventMessage().single(2, -2).encoded(), bytes("\x15\0\0\0\xC0"));
  EXPECT_EQ(EventMessage().bytes(1, "tag").encoded(), bytes("\x0A\x03tag"));
  EXPECT_EQ(EventMessage().reals(6, std::array{1.0, 2.0}).encoded(),
            bytes("\x32\x10\0\0\0\0\0\0\xF0\x3F\0\0\0\0\0\0\0\x40"));
  const std::string outer =
      EventMessage().message(5, EventMessage().integer(1, 1)).integer(2, 0).encoded();
  EXPECT_EQ(outer, bytes("\x2A\x02\x08\x01\x10\0"));
  EXPECT_EQ(EventMessage().bytes(8, std::string(200, 'x')).encoded().substr(0, 3),
            bytes("\x42\xC8\x01"));
}

}  // namespace
}  // namespace lockstep
