// SPDX-License-Identifier: BSD-3-Clause
// The examples' marked lines are the only ones that the single-device program does not have, and
// `lockstep compare` and the documentation give their number.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/locations.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tools/compare/comparison.h"

namespace lockstep {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& name) {
  const auto path = std::filesystem::path(testing::kSourceFolder) / name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path.string() + " cannot be read");
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

bool is_blank(const std::string& line) {
  return line.find_first_not_of(' ') == std::string::npos;
}

// An example without its first comment and without blank lines.
Lines program_of(const std::string& example) {
  Lines lines = lines_of("examples/" + example + ".cpp");
  lines.erase(lines.begin(), std::ranges::find_if(lines, [](const std::string& line) {
                return line.starts_with("#include");
              }));
  std::erase_if(lines, is_blank);
  return lines;
}

// A line's code, without the mark and the spaces before it; nullopt if it is not marked.
std::optional<std::string> marked_code(const std::string& line, const std::string& mark) {
  std::smatch parts;
  if (!std::regex_match(line, parts, std::regex("(.*[^ ]) +// " + mark))) return std::nullopt;
  return parts[1].str();
}

// Consecutive marked lines of a program, and the lines of the single-device program in their place.
struct Change {
  Lines marked;
  Lines replaced;

  void expect_valid() const {
    EXPECT_LE(replaced.size(), marked.size())
        << "only the single-device program has " << ::testing::PrintToString(replaced);
    for (const std::string& line : marked) {
      EXPECT_THAT(replaced, Not(Contains(line))) << "a marked line that does not differ";
    }
  }
};

// The number of marked lines. Every other line must be the single-device program's next one, after
// those that marked lines replace.
int count_marked(const Lines& program, const std::string& mark) {
  const Lines single = program_of("single_device");
  auto next = single.begin();
  int count = 0;
  Change change;
  for (const std::string& line : program) {
    if (const auto code = marked_code(line, mark)) {
      change.marked.push_back(*code);
      ++count;
      continue;
    }
    const auto same = std::find(next, single.end(), line);
    if (same == single.end()) {
      ADD_FAILURE() << "not in single_device.cpp, and not marked " << mark << ":\n" << line;
      continue;
    }
    change.replaced.assign(next, same);
    change.expect_valid();
    change = {};
    next = same + 1;
  }
  change.replaced.assign(next, single.end());
  change.expect_valid();
  return count;
}

// The number, the pattern's group, of each line that matches.
std::vector<int> numbers_in(const std::string& file, const std::string& pattern) {
  std::vector<int> numbers;
  for (const std::string& line : lines_of(file)) {
    std::smatch parts;
    if (std::regex_match(line, parts, std::regex(pattern)))
      numbers.push_back(std::stoi(parts[1].str()));
  }
  return numbers;
}

struct Mode {
  const char* example;
  const char* mark;
  TrainingMode mode;
  // The line of docs/modes.md, with the number as a group.
  const char* in_modes;
};

void PrintTo(const Mode& mode, std::ostream* stream) {
  *stream << mode.example;
}

class MarkedLines : public ::testing::TestWithParam<Mode> {};

TEST_P(MarkedLines, AreTheOnlyOnesThatDifferAndCompareCountsThem) {
  const auto& [example, mark, mode, in_modes] = GetParam();
  const int count = count_marked(program_of(example), mark);
  EXPECT_EQ(needs_of(mode).lines, count);
  EXPECT_THAT(numbers_in("README.md", fmt::format("[|] `{}`: .* ([0-9]+) [|]", mode_name(mode))),
              ElementsAre(count))
      << "README.md, the table's column \"lines changed\"";
  EXPECT_THAT(numbers_in("docs/comparison.md",
                         fmt::format("{} .* ([0-9]+) +{}", mode_name(mode), needs_of(mode).reach)),
              ElementsAre(count))
      << "docs/comparison.md, the column \"lines changed\"";
  EXPECT_THAT(numbers_in("docs/modes.md", in_modes), ElementsAre(count)) << in_modes;
}

INSTANTIATE_TEST_SUITE_P(
    Modes, MarkedLines,
    ::testing::Values(Mode{.example = "data_parallel",
                           .mark = "DP",
                           .mode = TrainingMode::data_parallel,
                           .in_modes = "[|] changes to a program [|] none [|] ([0-9]+) lines .*"},
                      Mode{.example = "ddp",
                           .mark = "DDP",
                           .mode = TrainingMode::distributed,
                           .in_modes = "[|] changes to a program [|].*[|] ([0-9]+) lines, .*"}),
    [](const auto& info) { return std::string(info.param.example); });

TEST(MarkedLines, OfDataParallelAreCountedInTheReadmesText) {
  const std::vector<std::string> words{"no", "one", "two", "three", "four", "five"};
  const int count = count_marked(program_of("data_parallel"), "DP");
  EXPECT_THAT(lines_of("README.md"),
              Contains(HasSubstr(fmt::format("data_parallel.cpp)). That changes {} lines of a ",
                                             words.at(static_cast<std::size_t>(count))))));
}

// With parentheses, the layers would draw their weights in an order that the compiler chooses.
TEST(MarkedLines, AreOfAProgramWithBracesAroundTheLayers) {
  EXPECT_THAT(program_of("single_device"), Contains(HasSubstr("torch::nn::Sequential net{")));
}

// The first block of C++ in the README.
Lines program_in_readme() {
  const Lines lines = lines_of("README.md");
  const auto begin = std::ranges::find(lines, "```cpp");
  const auto end = std::find(begin, lines.end(), "```");
  Lines program(begin == lines.end() ? end : begin + 1, end);
  std::erase_if(program, is_blank);
  return program;
}

TEST(MarkedLines, OfTheReadmeAreThoseOfTheExample) {
  const Lines shown = program_in_readme();
  const Lines example = program_of("ddp");
  auto next = example.begin();
  for (const std::string& line : shown) {
    const auto same = std::find(next, example.end(), line);
    ASSERT_TRUE(same != example.end()) << "not in examples/ddp.cpp, or not in this place:\n"
                                       << line;
    next = same + 1;
  }
  EXPECT_TRUE(next == example.end()) << "the README shows the program's end";

  Lines left_out = example;
  std::erase_if(left_out, [&](const std::string& line) {
    return !marked_code(line, "DDP") || std::ranges::find(shown, line) != shown.end();
  });
  EXPECT_THAT(left_out, IsEmpty()) << "marked, but not in the README";
}

}  // namespace
}  // namespace lockstep
