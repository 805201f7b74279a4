// SPDX-License-Identifier: BSD-3-Clause
// Pads cells to the width of their column, and breaks what is too wide.
#include "tools/report/text_table.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "lockstep/launch/console.h"

namespace lockstep {
namespace {

constexpr std::size_t kIndent = 4;  // of cells that continue a line

std::vector<std::size_t> widths_of(const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths;
  for (const Cells& line : lines) {
    widths.resize(line.size(), 0);
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  return widths;
}

std::size_t width_of(const std::vector<std::size_t>& widths, std::size_t gap) {
  return std::accumulate(widths.begin(), widths.end(), gap * (widths.size() - 1));
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string_view::npos; begin = end + 1) {
    end = text.find(at, begin);
    parts.emplace_back(text.substr(begin, end - begin));
  }
  return parts;
}

// Joins words to lines of at most `width` columns; a longer word has a line of its own.
std::vector<std::string> packed(const std::vector<std::string>& words, std::size_t width) {
  std::vector<std::string> lines;
  for (const std::string& word : words) {
    if (!lines.empty() && lines.back().size() + 1 + word.size() <= width) {
      lines.back() += " " + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

// The same table with the words of long names below each other.
std::vector<Cells> with_narrow_names(const std::vector<Cells>& lines) {
  const std::vector<std::size_t> widths = widths_of({lines.begin() + 1, lines.end()});
  std::vector<std::vector<std::string>> names;
  std::size_t height = 0;
  for (std::size_t i = 0; i < lines[0].size(); ++i) {
    const auto words = split(lines[0][i], ' ');
    std::size_t width = i < widths.size() ? widths[i] : 0;
    for (const std::string& word : words) width = std::max(width, word.size());
    names.push_back(packed(words, width));
    height = std::max(height, names.back().size());
  }
  std::vector<Cells> narrow(height, Cells(lines[0].size()));
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (std::size_t j = 0; j < names[i].size(); ++j) {
      narrow[height - names[i].size() + j][i] = names[i][j];
    }
  }
  narrow.insert(narrow.end(), lines.begin() + 1, lines.end());
  return narrow;
}

// Numbers of columns that share a line of text: {0, 7, 10} for columns 0 to 6, then 7 to 9.
std::vector<std::size_t> breaks(const std::vector<std::size_t>& widths, std::size_t gap,
                                std::size_t room) {
  std::vector<std::size_t> begins{0};
  std::size_t used = widths[0];
  for (std::size_t i = 1; i < widths.size(); ++i) {
    used += gap + widths[i];
    if (used <= room) continue;
    begins.push_back(i);
    used = kIndent + widths[i];
  }
  begins.push_back(widths.size());
  return begins;
}

}  // namespace

int text_columns() {
  return terminal_columns(OutputStream::out);
}

std::string align_columns(const std::vector<Cells>& lines, int columns) {
  if (lines.empty()) return {};
  const auto room = static_cast<std::size_t>(std::max(columns, 1));
  std::size_t gap = 2;
  std::vector<Cells> shown = lines;
  if (width_of(widths_of(shown), gap) > room) shown = with_narrow_names(lines);
  const std::vector<std::size_t> widths = widths_of(shown);
  if (width_of(widths, gap) > room && width_of(widths, 1) <= room) gap = 1;
  const std::vector<std::size_t> begins = breaks(widths, gap, room);
  std::string table;
  for (const Cells& line : shown) {
    for (std::size_t part = 0; part + 1 < begins.size(); ++part) {
      std::string text(part == 0 ? 0 : kIndent, ' ');
      for (std::size_t i = begins[part]; i < begins[part + 1]; ++i) {
        if (i == 0) {
          text += fmt::format("{:<{}}", line[i], widths[i]);
        } else {
          text += fmt::format("{:{}}{:>{}}", "", i == begins[part] ? 0 : gap, line[i], widths[i]);
        }
      }
      text.erase(text.find_last_not_of(' ') + 1);
      if (!text.empty()) table += text + '\n';
    }
  }
  return table;
}

std::string wrapped(std::string_view text, std::size_t indent, int columns) {
  // A narrow terminal breaks the lines by itself.
  const std::size_t room = std::max<std::size_t>(static_cast<std::size_t>(columns), indent + 20);
  std::vector<std::string> lines;
  for (const std::string& paragraph : split(text, '\n')) {
    const std::size_t begin = std::min(paragraph.find_first_not_of(' '), paragraph.size());
    // The text of a list's item continues with a further indentation.
    const std::size_t hanging = begin == 0 ? 0 : begin + 2;
    const auto words = split(std::string_view(paragraph).substr(begin), ' ');
    bool is_first = true;
    for (const std::string& line : packed(words, room - std::min(room - 1, indent + hanging))) {
      lines.push_back(std::string(is_first ? begin : hanging, ' ') + line);
      is_first = false;
    }
  }
  std::string all;
  for (const std::string& line : lines) {
    if (!all.empty()) all += '\n' + std::string(indent, ' ');
    all += line;
  }
  return all;
}

}  // namespace lockstep
