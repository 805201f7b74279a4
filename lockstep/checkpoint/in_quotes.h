// SPDX-License-Identifier: BSD-3-Clause
// Text from a file, made fit for a message: names in hostile files are long or control a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// In double quotes. The bytes of control characters, of those that change the direction of text or
// cannot be seen, and those that are not UTF-8 become \xNN; a long text is cut after a character.
std::string in_quotes(std::string_view text);

// As in "[2, 3]".
template <class Sizes>
std::string shape_text(const Sizes& sizes) {
  std::string text;
  for (const auto size : sizes) {
    if (!text.empty()) text += ", ";
    text += std::to_string(size);
  }
  return "[" + text + "]";
}

}  // namespace lockstep
