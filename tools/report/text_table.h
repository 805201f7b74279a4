// SPDX-License-Identifier: BSD-3-Clause
// Lays out tables and paragraphs for people to read, within the width of their terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

using Cells = std::vector<std::string>;

// The columns that a text for standard output may take: its terminal's, or 80 if it is no terminal.
int text_columns();

// One line of text for each line of cells; all lines have the same number of cells, and the first
// holds the names of the columns. The first column is left-aligned, the others right-aligned. Ends
// with a newline. In a table that would be wider than `columns`, names take several lines and gaps
// are narrower; if it is still too wide, the last cells of each line follow in a line of their own,
// with an indentation.
std::string align_columns(const std::vector<Cells>& lines, int columns = text_columns());

// Breaks a paragraph between words into lines of at most `columns` columns, which begin with
// `indent` spaces, except the first, since the caller has written what is to its left. Does not end
// with a newline. Newlines in the text remain.
std::string wrapped(std::string_view text, std::size_t indent, int columns = text_columns());

}  // namespace lockstep
