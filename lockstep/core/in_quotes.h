// SPDX-License-Identifier: BSD-3-Clause
// Text from a file, made fit for a message: names in hostile files are long or control a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

// Returns the text in double quotes. Bytes become \xNN if they are not UTF-8, or if they are a
// character that controls a terminal, changes the direction of text or is invisible. A long text is
// cut after a character.
std::string in_quotes(std::string_view text);

// Returns text such as "[2, 3]".
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
