// SPDX-License-Identifier: BSD-3-Clause
// A comparison's figures as text, one line per row after a line of names. Only for .cpp files.
#pragma once

#include <string>
#include <vector>

#include "tools/compare/comparison.h"
#include "tools/report/text_table.h"

namespace lockstep {

// What is the same in all of comparison.rows, and in all of comparison.rows_same_rank_batch.
std::string global_batch_heading(const Comparison& comparison);
std::string rank_batch_heading(const Comparison& comparison);
// That the load exceeded the cores while it was made; empty if it did not.
std::string load_note(const Comparison& comparison);
// Time, loss, accuracy, speedup.
std::vector<Cells> figures(const std::vector<ComparisonRow>& rows);
// Memory, traffic, lines of code, reach, of comparison.rows.
std::vector<Cells> costs(const Comparison& comparison);

}  // namespace lockstep
