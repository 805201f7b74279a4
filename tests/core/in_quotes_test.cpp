// SPDX-License-Identifier: BSD-3-Clause
// What a text from a file cannot do to a message.
#include "lockstep/core/in_quotes.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(InQuotes, KeepsOrdinaryText) {
  EXPECT_EQ(in_quotes("model.0.weight"), "\"model.0.weight\"");
  EXPECT_EQ(in_quotes("gr\xc3\xb6\xc3\x9f\x65 \xe6\x97\xa5 \xf0\x9f\x98\x80"),
            "\"gr\xc3\xb6\xc3\x9f\x65 \xe6\x97\xa5 \xf0\x9f\x98\x80\"");
}

TEST(InQuotes, EscapesWhatATerminalExecutes) {
  EXPECT_EQ(in_quotes("\x1b[31m\x7f\"\\"), R"("\x1b[31m\x7f\x22\x5c")");
  EXPECT_EQ(in_quotes("\xc2\x9b\x33\xc2\x9d"), R"("\xc2\x9b3\xc2\x9d")");             // CSI, OSC
  EXPECT_EQ(in_quotes("\xe2\x80\xae\xe2\x81\xa6"), R"("\xe2\x80\xae\xe2\x81\xa6")");  // bidi
}

TEST(InQuotes, EscapesWhatIsNotUtf8) {
  EXPECT_EQ(in_quotes("\x9b"), R"("\x9b")");
  EXPECT_EQ(in_quotes("\xc3"), R"("\xc3")");
  EXPECT_EQ(in_quotes("\xc0\xaf"), R"("\xc0\xaf")");          // overlong
  EXPECT_EQ(in_quotes("\xed\xa0\x80"), R"("\xed\xa0\x80")");  // a surrogate
  EXPECT_EQ(in_quotes("\xf4\x90\x80\x80"), R"("\xf4\x90\x80\x80")");
}

TEST(InQuotes, CutsAfterACharacter) {
  EXPECT_EQ(in_quotes(std::string(100, 'x')), "\"" + std::string(100, 'x') + "\"");
  EXPECT_EQ(in_quotes(std::string(99, 'x') + "\xc3\xb6"),
            "\"" + std::string(99, 'x') + "...\" (101 bytes)");
}

}  // namespace
}  // namespace lockstep
