// SPDX-License-Identifier: BSD-3-Clause
// A comparison as one page that opens in any browser, without a network.
#pragma once

#include <string>

#include "tools/compare/comparison.h"

namespace lockstep {

// The text of Chart.js 3 or later, which is inlined: Debian's package libjs-chart.js, or the file
// that the environment's LOCKSTEP_CHART_JS names. UsageError that says how to get it if it is
// absent.
std::string read_chart_library();

// HTML with charts of loss, throughput and speedup, and the figures as tables; command is what made
// it. Says on what machine, by looking at this one.
std::string to_html(const Comparison& comparison, const std::string& command,
                    const std::string& chart_library);

}  // namespace lockstep
