// SPDX-License-Identifier: BSD-3-Clause
// Columns for people to read.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

using Cells = std::vector<std::string>;

// One line of text for each line of cells, of which all have as many: the first column to the left,
// the others to the right, two spaces between them. Ends with a newline.
std::string align_columns(const std::vector<Cells>& lines);

}  // namespace lockstep
