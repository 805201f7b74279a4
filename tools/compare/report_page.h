// SPDX-License-Identifier: BSD-3-Clause
// The page that a comparison's report fills in.
#pragma once

#include <string_view>

namespace lockstep {

// The text of report_page.html, in which {{NAME}} stands for what is to be put in.
extern const std::string_view report_page;

}  // namespace lockstep
