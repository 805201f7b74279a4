// SPDX-License-Identifier: BSD-3-Clause
// Filters the stack trace that libtorch appends to an error's message. Reports omit it. Its forms:
//   Exception raised from f at file:1 (most recent call first):
//   frame #0: f() + 0x1 (0x7f in a.so)
// without the first line after "[enforce fail at file:1] ..."; and with symbols
//   C++ CapturedTraceback:
//   #4 f() from file:1
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace lockstep {

// Takes the lines of one stream in order.
class StackTraceFilter {
 public:
  bool is_trace(std::string_view line) {
    line = without_rank(line);
    // A log of libtorch's may have text before the head, which is kept.
    const bool head = line.ends_with("(most recent call first):") &&
                      line.find("Exception raised from ") != std::string_view::npos;
    if (head || line == "C++ CapturedTraceback:") {
      frame_ = line.starts_with('C') ? "#" : "frame #";
      return line.starts_with("Exception") || line.starts_with('C');
    }
    const bool first_frame =
        line.starts_with("frame #0: ") && line.find(" + 0x") != std::string_view::npos;
    if (first_frame) frame_ = "frame #";
    if (frame_.empty() || !line.starts_with(frame_)) frame_ = {};
    return !frame_.empty();
  }

 private:
  // torch.distributed begins each line of an exception with "[rank1]: ", a launcher within the rank
  // with "[rank 1] ".
  static std::string_view without_rank(std::string_view line) {
    if (!line.starts_with("[rank")) return line;
    line.remove_prefix(std::min(line.find(']'), line.size() - 1) + 1);
    for (const char separator : {':', ' '}) {
      if (line.starts_with(separator)) line.remove_prefix(1);
    }
    return line;
  }

  // How the trace's next line begins; empty outside a trace.
  std::string_view frame_{};
};

// An error's message without the trace's lines.
inline std::string without_stack_trace(std::string_view text) {
  StackTraceFilter filter;
  std::string kept;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    if (!filter.is_trace(line)) kept.append(kept.empty() ? "" : "\n").append(line);
    text.remove_prefix(std::min(text.size(), line.size() + 1));
  }
  return kept;
}

}  // namespace lockstep
