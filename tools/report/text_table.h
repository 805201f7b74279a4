// SPDX-License-Identifier: BSD-3-Clause
// Formats tables for people to read.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

using Cells = std::vector<std::string>;

// One line of text for each line of cells; all lines have the same number of cells. The first
// column is left-aligned, the others right-aligned, with two spaces between columns. Ends with a
// newline.
std::string align_columns(const std::vector<Cells>& lines);

}  // namespace lockstep
