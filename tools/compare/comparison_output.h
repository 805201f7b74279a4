// SPDX-License-Identifier: BSD-3-Clause
// A comparison as tables for people, as JSON, and as an HTML page that any browser opens without a
// network.
#pragma once

#include <string>

#include "tools/compare/comparison.h"

namespace lockstep {

// At most 100 characters wide; ends with a newline.
std::string to_table(const Comparison& comparison);

// One object, on one line; documented in docs/cli.md.
std::string to_json(const Comparison& comparison);

// HTML with charts of loss, throughput and speedup, and the figures as tables. `command` is the
// command that produced the comparison. Describes this machine.
std::string to_html(const Comparison& comparison, const std::string& command,
                    const std::string& chart_library);

}  // namespace lockstep
