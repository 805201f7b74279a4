// SPDX-License-Identifier: BSD-3-Clause
// The texts of which a report's page is made, from the files of this folder.
#pragma once

#include <string_view>

namespace lockstep {

// style.css and charts.js, which all pages share.
extern const std::string_view report_style;
extern const std::string_view report_charts;
// training_page.html, in which {{NAME}} marks a place for text.
extern const std::string_view training_page;

}  // namespace lockstep
