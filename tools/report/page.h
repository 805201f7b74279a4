// SPDX-License-Identifier: BSD-3-Clause
// What reports share: HTML pages that any browser opens without a network.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tools/report/text_table.h"

namespace lockstep {

// The text of Chart.js 3 or later, which is inlined: from Debian's package libjs-chart.js, or the
// file named by LOCKSTEP_CHART_JS. UsageError, saying how to get it, if it is missing.
std::string read_chart_library();

// As HTML shows it.
std::string escaped(std::string_view text);
// As the content of a script element.
std::string inside_script(std::string text);
// The first line holds the names of the columns.
std::string html_table(const std::vector<Cells>& lines);
// A description list: the command, the time and this machine, of which so much is in use.
std::string how_it_was_made(const std::string& command, const std::string& device,
                            const std::string& in_use);

using PageTexts = std::vector<std::pair<std::string_view, std::string>>;
// Puts the texts into their places {{NAME}}, and the style and the shared script into theirs.
std::string filled(std::string_view page, PageTexts texts);

}  // namespace lockstep
