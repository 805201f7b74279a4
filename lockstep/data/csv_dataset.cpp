// SPDX-License-Identifier: BSD-3-Clause
// Splits lines into fields, parses the numbers, and separates the target columns from the others.
#include "lockstep/data/csv_dataset.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/core/number.h"
#include "lockstep/data/data_files.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {
namespace {

constexpr Range<double> kFloats{-std::numeric_limits<float>::max(),
                                std::numeric_limits<float>::max()};
// Larger whole numbers are not exact in float32.
constexpr float kMaxClass = 1 << 24;
// More are a file that is not a table.
constexpr std::size_t kMaxColumns = 1 << 16;

std::string read_csv_text(const std::filesystem::path& path) {
  const StoredBytes bytes = bytes_in_file(path);
  // The text, and its numbers, which rarely take more bytes than their digits.
  require_available_memory(bytes.size * 2, path.string());
  std::string text(bytes.size, '\0');
  bytes.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Takes the first line from the text.
std::string_view take_row(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// The fields of a line; `where` begins the error's message.
class CsvLine {
 public:
  CsvLine(std::string_view line, char delimiter, std::string where)
      : rest_(line),
        delimiter_(delimiter),
        blanks_(delimiter == '\t' ? " " : " \t"),
        where_(std::move(where)) {}

  // Returns the next field without its quotes, or nullopt at the end of the line. A field with
  // quotes is valid until the next call.
  std::optional<std::string_view> next() {
    if (ended_) return std::nullopt;
    const std::size_t first = rest_.find_first_not_of(blanks_);
    if (first != std::string_view::npos && rest_[first] == '"') return quoted(first + 1);
    return trimmed(up_to_delimiter());
  }

 private:
  std::string_view up_to_delimiter() {
    const std::size_t end = rest_.find(delimiter_);
    const std::string_view field = rest_.substr(0, end);
    ended_ = end == std::string_view::npos;
    if (!ended_) rest_.remove_prefix(end + 1);
    return field;
  }

  std::string_view quoted(std::size_t at) {
    unquoted_.clear();
    for (; at < rest_.size(); ++at) {
      if (rest_[at] == '"') {
        if (at + 1 == rest_.size() || rest_[at + 1] != '"') break;
        ++at;  // two quotes are one
      }
      unquoted_ += rest_[at];
    }
    if (at >= rest_.size()) {
      throw UsageError(fmt::format("{}: a quote is not closed before the end of the line", where_));
    }
    rest_.remove_prefix(at + 1);
    if (const std::string_view more = trimmed(up_to_delimiter()); !more.empty()) {
      throw UsageError(fmt::format("{}: {} follows a closing quote", where_, in_quotes(more)));
    }
    return trimmed(unquoted_);
  }

  std::string_view rest_;
  char delimiter_;
  // What may precede a quote.
  const char* blanks_;
  std::string where_;
  bool ended_ = false;
  std::string unquoted_;
};

// The file's numbers, row by row.
struct CsvTable {
  std::vector<std::string> names;
  bool has_header = false;
  std::vector<float> values;

  std::size_t columns() const { return names.size(); }
  std::size_t rows() const { return values.size() / columns(); }
};

std::string line_name(const std::string& file, std::size_t number) {
  return fmt::format("{}: line {}", file, number);
}

// Takes the names from the first line. If it is a row of numbers, they are the columns' numbers.
void read_names(std::string_view line, char delimiter, const std::string& where, CsvTable& table) {
  CsvLine fields(line, delimiter, where);
  while (const auto field = fields.next()) {
    if (table.columns() == kMaxColumns) {
      throw UsageError(
          fmt::format("{} has more than {} fields; is it a table of numbers, and is "
                      "{} its delimiter?",
                      where, kMaxColumns, in_quotes({&delimiter, 1})));
    }
    table.names.emplace_back(*field);
    table.has_header |= !parse_number(*field, kFloats);
  }
  if (table.has_header) return;
  for (std::size_t i = 0; i < table.columns(); ++i) table.names[i] = std::to_string(i);
}

void read_row(std::string_view line, char delimiter, const std::string& where, CsvTable& table) {
  CsvLine fields(line, delimiter, where);
  std::size_t count = 0;
  while (const auto field = fields.next()) {
    if (count == table.columns()) {
      throw UsageError(
          fmt::format("{} has more than the {} fields of the first line", where, table.columns()));
    }
    const auto value = parse_number(*field, kFloats);
    if (!value) {
      throw UsageError(
          fmt::format("{}, column {}: {} is not a number; give finite decimal numbers in each row",
                      where, in_quotes(table.names[count]), in_quotes(*field)));
    }
    table.values.push_back(static_cast<float>(*value));
    ++count;
  }
  if (count < table.columns()) {
    throw UsageError(
        fmt::format("{} has {} fields, but the first line has {}", where, count, table.columns()));
  }
}

CsvTable read_table(std::string_view text, char delimiter, const std::string& file) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  CsvTable table;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::string_view line = take_row(text);
    if (trimmed(line).empty()) continue;
    const bool is_first = table.names.empty();
    if (is_first) read_names(line, delimiter, line_name(file, number), table);
    if (!is_first || !table.has_header) {
      read_row(line, delimiter, line_name(file, number), table);
    }
  }
  if (table.values.empty()) throw UsageError(fmt::format("{}: the file has no rows", file));
  return table;
}

// The target columns, in the order in which they are named.
std::vector<std::size_t> find_targets(const CsvTable& table, const CsvDatasetOptions& options,
                                      const std::string& file) {
  std::vector<std::size_t> targets;
  for (const std::string& name : options.targets) {
    const auto found = std::ranges::find(table.names, name);
    const auto column = static_cast<std::size_t>(found - table.names.begin());
    if (found == table.names.end() || std::ranges::count(targets, column) > 0) {
      throw UsageError(fmt::format(
          "{}: the target {} is {}; name each target once, by {}", file, in_quotes(name),
          found == table.names.end() ? "not one of its columns" : "named twice",
          table.has_header ? "its name in the header"
                           : "its number from 0, as there is no header"));
    }
    targets.push_back(column);
  }
  if (targets.empty()) targets.push_back(table.columns() - 1);
  if (options.classes && targets.size() > 1) {
    throw UsageError(
        fmt::format("{}: .classes needs one target, but {} are named", file, targets.size()));
  }
  return targets;
}

at::Tensor take_columns(const CsvTable& table, const std::vector<std::size_t>& columns) {
  const std::size_t rows = table.rows();
  at::Tensor result = at::empty(
      {static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns.size())}, at::kFloat);
  auto* output = result.data_ptr<float>();
  for (std::size_t row = 0; row < rows; ++row) {
    for (const std::size_t column : columns) {
      *output++ = table.values[row * table.columns() + column];
    }
  }
  return result;
}

at::Tensor to_classes(const at::Tensor& column, const std::string& file) {
  const auto* values = column.data_ptr<float>();
  for (std::int64_t row = 0; row < column.size(0); ++row) {
    const float value = values[row];
    if (value >= 0 && value <= kMaxClass && value == std::floor(value)) continue;
    throw UsageError(fmt::format(
        "{}: the class of row {} is {}; give whole numbers from 0, or leave out .classes", file,
        row + 1, value));
  }
  return column.to(at::kLong).squeeze(1);
}

}  // namespace

CsvDataset::CsvDataset(const std::filesystem::path& file, const CsvDatasetOptions& options) {
  const std::string name = file.string();
  if (std::string_view("\"\r\n ").find(options.delimiter) != std::string_view::npos) {
    throw UsageError(
        fmt::format("{}: {} cannot be the delimiter; give a comma, a semicolon, a tab or the like",
                    name, in_quotes({&options.delimiter, 1})));
  }
  const CsvTable table = read_table(read_csv_text(file), options.delimiter, name);
  const std::vector<std::size_t> targets = find_targets(table, options, name);
  std::vector<std::size_t> others;
  for (std::size_t column = 0; column < table.columns(); ++column) {
    if (std::ranges::count(targets, column) > 0) continue;
    others.push_back(column);
    columns_.push_back(table.names[column]);
  }
  if (others.empty()) {
    throw UsageError(fmt::format("{}: every column is a target; no column is left as input", name));
  }
  inputs_ = take_columns(table, others);
  targets_ = take_columns(table, targets);
  if (options.classes) targets_ = to_classes(targets_, name);
}

torch::data::Example<> CsvDataset::get(std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  return {inputs_[i], targets_[i]};
}

c10::optional<std::size_t> CsvDataset::size() const {
  return static_cast<std::size_t>(inputs_.size(0));
}

}  // namespace lockstep
