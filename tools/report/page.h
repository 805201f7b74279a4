// SPDX-License-Identifier: BSD-3-Clause
// The shared parts of reports: HTML pages that any browser opens without a network.
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

// Returns HTML that shows the text.
std::string escaped(std::string_view text);
// Returns the text as the content of a script element.
std::string inside_script(std::string text);
// The first line holds the names of the columns.
std::string html_table(const std::vector<Cells>& lines);
// Returns a description list: the command, the time and this machine. `in_use`: the part of the
// machine that is in use.
std::string how_it_was_made(const std::string& command, const std::string& device,
                            const std::string& in_use);

// The pages, in which {{NAME}} marks a place for text: training_page.html here, and
// comparison_page.html in tools/compare/.
extern const std::string_view training_page;
extern const std::string_view comparison_page;
// style.css and charts.js, which all pages share.
extern const std::string_view report_style;
extern const std::string_view report_charts;

using PageTexts = std::vector<std::pair<std::string_view, std::string>>;
// Puts the texts into their places {{NAME}}, and the style and the shared script into theirs.
std::string filled(std::string_view page, PageTexts texts);

}  // namespace lockstep
