// SPDX-License-Identifier: BSD-3-Clause
// Pads cells to the width of their column.
#include "tools/report/text_table.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep {

std::string align_columns(const std::vector<Cells>& lines) {
  std::vector<std::size_t> widths;
  for (const Cells& line : lines) {
    widths.resize(line.size(), 0);
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string table;
  for (const Cells& line : lines) {
    table += fmt::format("{:<{}}", line[0], widths[0]);
    for (std::size_t i = 1; i < line.size(); ++i) {
      table += fmt::format("  {:>{}}", line[i], widths[i]);
    }
    table += '\n';
  }
  return table;
}

}  // namespace lockstep
