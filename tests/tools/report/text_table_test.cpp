// SPDX-License-Identifier: BSD-3-Clause
// Tables and paragraphs at several widths.
#include "tools/report/text_table.h"

#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::HasSubstr;

const std::vector<Cells> kLines{{"mode", "final loss", "MB moved per step", "reach"},
                                {"single", "0.1234", "0.000", "one device"},
                                {"ddp", "0.1230", "1.628", "many machines"}};

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) widest = std::max(widest, line.size());
  return widest;
}

TEST(TextTable, AlignsColumns) {
  EXPECT_EQ(align_columns(kLines, 80),
            "mode    final loss  MB moved per step          reach\n"
            "single      0.1234              0.000     one device\n"
            "ddp         0.1230              1.628  many machines\n");
}

TEST(TextTable, BreaksNamesThenNarrowsGaps) {
  EXPECT_EQ(align_columns(kLines, 44),
            "                   MB\n"
            "                moved\n"
            "         final    per\n"
            "mode      loss   step          reach\n"
            "single  0.1234  0.000     one device\n"
            "ddp     0.1230  1.628  many machines\n");
  EXPECT_THAT(align_columns(kLines, 34), HasSubstr("\nddp    0.1230 1.628 many machines\n"));
}

TEST(TextTable, ContinuesLinesThatAreStillTooWide) {
  const std::string table = align_columns(kLines, 30);
  EXPECT_THAT(table, HasSubstr("\nsingle  0.1234  0.000\n       one device\n"));
  EXPECT_LE(widest_line(table), 30u);
}

TEST(TextTable, LeavesACellWhole) {
  const std::string hash(64, 'a');
  EXPECT_EQ(align_columns({{"name", "sha256"}, {"w", hash}}, 20),
            "name\n" + std::string(4 + 58, ' ') + "sha256\nw\n    " + hash + "\n");
}

TEST(Wrapped, BreaksBetweenWordsAndIndents) {
  EXPECT_EQ(wrapped("Number of samples per step on each rank", 4, 24),
            "Number of samples\n    per step on each\n    rank");
  EXPECT_EQ(wrapped("Recipe to train:\n  linear: a line fitted by SGD to points", 2, 26),
            "Recipe to train:\n    linear: a line\n      fitted by SGD to\n      points");
}

}  // namespace
}  // namespace lockstep
