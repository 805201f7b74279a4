// SPDX-License-Identifier: BSD-3-Clause
// A line that a rank printed, as the launcher passes it on.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

enum class OutputStream { out, err };

struct OutputLine {
  int rank = 0;
  OutputStream stream = OutputStream::out;
  // Without its line ending; valid during the call.
  std::string_view text;
};

using LineSink = std::function<void(const OutputLine&)>;

// A line that stays at the bottom of the launcher's terminal while the ranks run, below their
// output. Where the stream is no terminal, or one whose TERM is dumb, there is none.
struct StatusLine {
  OutputStream stream = OutputStream::out;
  // When a rank changes this key of the launcher's store, the line becomes render(value, columns):
  // printable characters and colours, narrower than the terminal, whose size may change. Must not
  // throw or block.
  std::string key{};
  std::function<std::string(const std::string& value, int columns)> render{};
};

}  // namespace lockstep
