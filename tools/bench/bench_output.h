// SPDX-License-Identifier: BSD-3-Clause
// Measurements as lines for people and as JSON; docs/cli.md says what the fields mean.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/collective_bench.h"
#include "tools/bench/dp_bench.h"
#include "tools/bench/step_bench.h"

namespace lockstep::bench {

// What was measured, and the names of the columns; ends with a newline.
std::string heading(const CollectiveBench& bench, int ranks);
// A row, as wide as the columns of the heading; ends with a newline.
std::string to_line(const CollectiveRow& row);
// One object, on one line.
std::string to_json(const CollectiveBench& bench, int ranks,
                    const std::vector<CollectiveRow>& rows);

// The steps of a model; over the floor, which is the second row, is what DDP costs.
std::string to_table(const TrainingStep& step, const StepRows& rows);
std::string to_json(const TrainingStep& step, const StepRows& rows);

// How many times as fast as the first row each is.
std::string to_table(const TrainingStep& step, const std::vector<DpRow>& rows);
std::string to_json(const TrainingStep& step, const std::vector<DpRow>& rows);

}  // namespace lockstep::bench
