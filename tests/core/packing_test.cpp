// SPDX-License-Identifier: BSD-3-Clause
// Values that are packed and unpacked, and bytes that are not packed values.
#include "lockstep/core/packing.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

enum class Colour : char { red = 'r', blue = 'b' };

TEST(Packing, CarriesEachKindOfValue) {
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  const std::string zero("a\0b", 3);
  const std::string bytes =
      pack(-3, kMost, true, Colour::blue, "text", zero, std::vector<int>{1, 2},
           Pairs{{"name", "value"}}, std::optional<int>(), std::optional<std::string>("given"));
  int number = 0;
  std::uint64_t most = 0;
  bool yes = false;
  Colour colour = Colour::red;
  std::string text;
  std::string with_zero;
  std::vector<int> list;
  Pairs pairs;
  std::optional<int> none;
  std::optional<std::string> some;
  unpack(bytes, number, most, yes, colour, text, with_zero, list, pairs, none, some);
  EXPECT_EQ(number, -3);
  EXPECT_EQ(most, kMost);
  EXPECT_TRUE(yes);
  EXPECT_EQ(colour, Colour::blue);
  EXPECT_EQ(text, "text");
  EXPECT_EQ(with_zero, zero);
  EXPECT_EQ(list, (std::vector<int>{1, 2}));
  EXPECT_EQ(pairs, (Pairs{{"name", "value"}}));
  EXPECT_FALSE(none);
  EXPECT_EQ(some, "given");
}

TEST(Packing, RecordsFollowEachOther) {
  const std::string bytes = pack("first", 1) + pack("second", 2);
  Unpacking packed(bytes);
  EXPECT_EQ(packed.next<std::string>(), "first");
  EXPECT_EQ(packed.next<int>(), 1);
  EXPECT_FALSE(packed.done());
  EXPECT_EQ(packed.next<std::string_view>(), "second");
  EXPECT_EQ(packed.next<int>(), 2);
  EXPECT_TRUE(packed.done());
}

TEST(Packing, RefusesBytesThatEndTooEarly) {
  const std::string bytes = pack(7, std::vector<std::string>{"one", "two"});
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    int number = 0;
    std::vector<std::string> texts;
    EXPECT_THAT([&] { unpack(bytes.substr(0, length), number, texts); },
                ThrowsMessage<BackendError>(HasSubstr("end too early")))
        << length;
  }
}

TEST(Packing, RefusesLengthsThatCannotBe) {
  for (const std::int64_t length : {std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    std::string text;
    std::vector<std::string> texts;
    EXPECT_THROW(unpack(pack(length), text), BackendError) << length;
    EXPECT_THROW(unpack(pack(length), texts), BackendError) << length;
  }
}

TEST(Packing, RefusesFurtherBytesAndNumbersThatDoNotFit) {
  int number = 0;
  bool flag = false;
  EXPECT_THROW(unpack(pack(1, 2), number), BackendError);
  EXPECT_THROW(unpack(pack(std::int64_t{1} << 40), number), BackendError);
  EXPECT_THROW(unpack(pack(2), flag), BackendError);
}

}  // namespace
}  // namespace lockstep
