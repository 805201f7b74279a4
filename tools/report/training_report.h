// SPDX-License-Identifier: BSD-3-Clause
// One training as an HTML page.
#pragma once

#include <string>
#include <vector>

#include "tools/recipes/train_result.h"
#include "tools/recipes/training_course.h"

namespace lockstep {

// HTML with charts of loss, learning rate, memory, throughput and the time of a step on each rank,
// and the figures as tables. `command` is the command that trained; describes this machine.
std::string to_html(const TrainResult& result, const std::vector<RankCourse>& ranks,
                    const std::string& command, const std::string& chart_library);

}  // namespace lockstep
