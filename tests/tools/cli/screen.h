// SPDX-License-Identifier: BSD-3-Clause
// What a terminal shows of a program's output that redraws its last line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::testing {

struct Screen {
  // The last is the line of the cursor.
  std::vector<std::string> lines{""};
  // The text of the cursor's line each time that it was redrawn.
  std::vector<std::string> redrawn;
  bool colours = false;
  // A control sequence that it does not know, or text that would push other text aside.
  std::string fault;
};

// Understands carriage return, line feed, erase to the end of the screen, and colours.
inline Screen screen_of(std::string_view output) {
  Screen screen;
  std::size_t column = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    std::string& line = screen.lines.back();
    if (output[i] == '\n') {
      screen.lines.emplace_back();
      column = 0;
    } else if (output[i] == '\r') {
      column = 0;
    } else if (output.substr(i, 3) == "\033[J") {
      line.resize(column);
      if (column > 0) screen.redrawn.push_back(line);
      i += 2;
    } else if (output.substr(i, 2) == "\033[") {
      const std::size_t end = output.find('m', i);
      if (end == std::string_view::npos || end > i + 4) {
        // The program may have been cut off here.
        if (end != std::string_view::npos) screen.fault = output.substr(i, 8);
        return screen;
      }
      screen.colours = true;
      i = end;
    } else {
      if (column < line.size())
        line[column] = output[i];
      else
        line += output[i];
      ++column;
    }
  }
  return screen;
}

}  // namespace lockstep::testing
