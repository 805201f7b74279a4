// SPDX-License-Identifier: BSD-3-Clause
// Filters the stack trace that libtorch appends to an error's message: "Exception raised from f at
// file:1 (most recent call first):", and lines that begin with "frame #0: ". Reports omit it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace lockstep {

// Takes the lines of one stream in order.
class StackTraceFilter {
 public:
  bool is_trace(std::string_view line) {
    in_trace_ = is_head(line) || (in_trace_ && line.starts_with("frame #"));
    return in_trace_;
  }

 private:
  static bool is_head(std::string_view line) {
    return line.starts_with("Exception raised from ") &&
           line.ends_with("(most recent call first):");
  }

  bool in_trace_ = false;
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
