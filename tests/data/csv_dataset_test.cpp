// SPDX-License-Identifier: BSD-3-Clause
// Tables with and without headers, and files that are not tables of numbers.
#include "lockstep/data/csv_dataset.h"

#include <random>

#include "support/temporary_folder.h"
#include <gmock/gmock.h>
#include <torch/types.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::TemporaryFolder;
using ::testing::ThrowsMessage;

CsvDataset parse_table(const std::string& text, const CsvDatasetOptions& options = {}) {
  const TemporaryFolder folder;
  folder.write("some.csv", text);
  return CsvDataset(folder.path() / "some.csv", options);
}

void expect_table_refused(const std::string& text, const std::string& message,
                          const CsvDatasetOptions& options = {}) {
  EXPECT_THAT([&] { parse_table(text, options); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("/some.csv: "), HasSubstr(message))))
      << text;
}

TEST(CsvDataset, TakesTheLastColumnAsTarget) {
  CsvDataset data = parse_table("1,2,3\n-4.5,5e1,.25\n");
  EXPECT_TRUE(data.inputs().equal(torch::tensor({{1.F, 2.F}, {-4.5F, 50.F}})));
  EXPECT_TRUE(data.targets().equal(torch::tensor({{3.F}, {0.25F}})));
  EXPECT_THAT(data.columns(), ElementsAre("0", "1"));
  EXPECT_EQ(data.size(), 2u);
  EXPECT_TRUE(data.get(1).data.equal(torch::tensor({-4.5F, 50.F})));
  EXPECT_TRUE(data.get(1).target.equal(torch::tensor({0.25F})));
}

TEST(CsvDataset, TakesTargetsByNameAndClasses) {
  const std::string text = "\xef\xbb\xbfkind; \"a; \"\"b\"\"\" ;c\r\n2;1;\"5\"\r\n\r\n0; 3\t;6";
  const CsvDataset classes =
      parse_table(text, {.targets = {"kind"}, .classes = true, .delimiter = ';'});
  EXPECT_THAT(classes.columns(), ElementsAre("a; \"b\"", "c"));
  EXPECT_TRUE(classes.targets().equal(torch::tensor({2, 0}, torch::kLong)));
  EXPECT_TRUE(classes.inputs().equal(torch::tensor({{1.F, 5.F}, {3.F, 6.F}})));
  const CsvDataset two = parse_table(text, {.targets = {"c", "kind"}, .delimiter = ';'});
  EXPECT_TRUE(two.targets().equal(torch::tensor({{5.F, 2.F}, {6.F, 0.F}})));
  EXPECT_TRUE(parse_table("1,2,3\n", {.targets = {"0"}}).targets().equal(torch::tensor({{1.F}})));
}

TEST(CsvDataset, KeepsEmptyFieldsOfTabsApart) {
  EXPECT_TRUE(
      parse_table("1\t2\t3\n", {.delimiter = '\t'}).inputs().equal(torch::tensor({{1.F, 2.F}})));
  expect_table_refused("1\t2\t3\n\t\"2\"\t3\n", "line 2, column \"0\": \"\" is not a number",
                       {.delimiter = '\t'});
}

TEST(CsvDataset, NamesTheFieldThatIsNoNumber) {
  expect_table_refused("x,y\n1,2\n3,\n", "line 3, column \"y\": \"\" is not a number");
  expect_table_refused("1,2\n3,abc\n", "line 2, column \"1\": \"abc\" is not a number");
  expect_table_refused("1,2\nnan,4\n", "\"nan\" is not a number");
  expect_table_refused("1,2\ninf,4\n", "\"inf\" is not a number");
  expect_table_refused("1,2\n1e39,4\n", "\"1e39\" is not a number");
  expect_table_refused("1,2\n0x10,4\n", "\"0x10\" is not a number");
  expect_table_refused("1,2\n1 2,4\n", "\"1 2\" is not a number");
  expect_table_refused("1,2\n\x1b[31m\xff,4\n", "\"\\x1b[31m\\xff\" is not a number");
  expect_table_refused("1,2\n" + std::string(5000, '7') + "x,4\n",
                       std::string(100, '7') + "...\" (5001 bytes)");
}

TEST(CsvDataset, RefusesRowsOfOtherLengths) {
  expect_table_refused("1,2,3\n4,5\n", "line 2 has 2 fields, but the first line has 3");
  expect_table_refused("1,2\n3,4\n5,6,7\n", "line 3 has more than the 2 fields");
  expect_table_refused("1,2\n3,4,\n", "line 2 has more than the 2 fields");
  expect_table_refused("1,2\n\"3,4\n", "line 2: a quote is not closed");
  expect_table_refused("1,2\n\"3\"x,4\n", "line 2: \"x\" follows a closing quote");
}

TEST(CsvDataset, RefusesWhatIsNoTable) {
  expect_table_refused("", "the file has no rows");
  expect_table_refused("\n\r\n \n", "the file has no rows");
  expect_table_refused("a,b\n", "the file has no rows");
  expect_table_refused("1\n2\n", "every column is a target");
  expect_table_refused(std::string(70'000, ','), "more than 65536 fields");
  EXPECT_THAT([] { CsvDataset("/absent.csv"); },
              ThrowsMessage<UsageError>(HasSubstr("/absent.csv: there is no such file")));
}

TEST(CsvDataset, RefusesTargetsAndClassesThatCannotBe) {
  const std::string text = "a,b,c\n1,2,0.5\n";
  expect_table_refused(text, "the target \"d\" is not one of its columns", {.targets = {"d"}});
  expect_table_refused(text, "the target \"a\" is named twice", {.targets = {"a", "a"}});
  expect_table_refused("1,2\n", "its number from 0, as there is no header", {.targets = {"2"}});
  expect_table_refused(text, ".classes needs one target", {.targets = {"a", "b"}, .classes = true});
  expect_table_refused(text, "the class of row 1 is 0.5", {.classes = true});
  expect_table_refused("1,-1\n", "the class of row 1 is -1", {.classes = true});
  expect_table_refused(text, "cannot be the delimiter", {.delimiter = '"'});
}

TEST(CsvDataset, SurvivesRandomMutations) {
  const std::string seed = "\"a\",b,c\n1,2.5,\"-3e2\"\n4,5,6\r\n";
  std::mt19937 random(20261129);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string text = seed;
    for (auto changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.insert(at, 1, "\",\n.e-"[random() % 6]);
          break;
        default:
          text.erase(at, 1);
      }
    }
    try {
      const CsvDataset data = parse_table(text);
      EXPECT_TRUE(data.inputs().isfinite().all().item<bool>()) << text;
    } catch (const UsageError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_LT(refused, 300);
}

}  // namespace
}  // namespace lockstep
