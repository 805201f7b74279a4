// SPDX-License-Identifier: BSD-3-Clause
// Formats measurements as text and as JSON; docs/cli.md documents the fields.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/collective_bench.h"
#include "tools/bench/dp_bench.h"
#include "tools/bench/step_bench.h"

namespace lockstep::bench {

// The measured collective and the column names; ends with a newline.
std::string heading(const CollectiveBench& bench, int ranks);
// A row that is as wide as the heading's columns; ends with a newline.
std::string to_line(const CollectiveRow& row);
// One object, on one line.
std::string to_json(const CollectiveBench& bench, int ranks,
                    const std::vector<CollectiveRow>& rows);

// A model's steps. DDP's cost is its difference from the floor, which is the second row.
std::string to_table(const TrainingStep& step, const StepRows& rows);
std::string to_json(const TrainingStep& step, const StepRows& rows);

// With each row's speedup over the first.
std::string to_table(const TrainingStep& step, const std::vector<DpRow>& rows);
std::string to_json(const TrainingStep& step, const std::vector<DpRow>& rows);

}  // namespace lockstep::bench
