// SPDX-License-Identifier: BSD-3-Clause
// A comparison as an HTML page that any browser opens without a network.
#pragma once

#include <string>

#include "tools/compare/comparison.h"

namespace lockstep {

// HTML with charts of loss, throughput and speedup, and the figures as tables. `command` is the
// command that produced the comparison. Describes this machine.
std::string to_html(const Comparison& comparison, const std::string& command,
                    const std::string& chart_library);

}  // namespace lockstep
