// SPDX-License-Identifier: BSD-3-Clause
// The page template of a comparison's report.
#pragma once

#include <string_view>

namespace lockstep {

// The text of report_page.html, in which {{NAME}} marks a place for text.
extern const std::string_view report_page;

}  // namespace lockstep
