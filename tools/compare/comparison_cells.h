// SPDX-License-Identifier: BSD-3-Clause
// A comparison's figures as text, one line per row after a line of names. Only for .cpp files.
#pragma once

#include <vector>

#include "lockstep/core/text_table.h"
#include "tools/compare/comparison.h"

namespace lockstep {

// Time, loss, accuracy, speedup.
std::vector<Cells> figures(const Comparison& comparison);
// Memory, traffic, lines of code, reach.
std::vector<Cells> costs(const Comparison& comparison);

}  // namespace lockstep
