// SPDX-License-Identifier: BSD-3-Clause
// Splits one rank's output into lines for the screen, the log file and the report.
#pragma once

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/rank_reports.h"
#include "lockstep/launch/stack_trace.h"

namespace lockstep {

class RankOutput {
 public:
  // How much is remembered for the report, and at how many bytes a line without an end is cut.
  static constexpr std::size_t kRememberedLines = 20;
  static constexpr std::size_t kRememberedLineBytes = 1000;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 20;

  // Each whole line goes to the sink. A log file, unless its name is empty, gets the lines of both
  // streams; BackendError if it cannot be opened.
  RankOutput(int rank, LineSink sink, const std::string& log_file);

  void add(OutputStream stream, std::string_view bytes);
  // The stream ended; its unfinished line counts as a line.
  void finish(OutputStream stream);

  // Why the log file lacks lines from some point on: "cannot write the log file ...: No space left
  // on device". Empty while it is complete.
  const std::string& log_error() const { return log_error_; }

  // The last lines, without libtorch's stack traces, which would displace the lines before them.
  std::vector<std::string> last_lines() const { return {last_lines_.begin(), last_lines_.end()}; }
  // Call it in a forked child.
  void leave_to_parent() { log_.reset(); }

 private:
  std::string& partial(OutputStream stream) { return partial_[stream == OutputStream::err]; }
  void emit(OutputStream stream, std::string_view line);
  void write_log(std::string_view line);

  int rank_;
  LineSink sink_;
  std::string log_file_;
  UniqueFd log_;
  std::string log_error_;
  std::string partial_[2];
  StackTraceFilter traces_[2];
  std::deque<std::string> last_lines_;
};

// "[rank 2] ", in one of six colours if `coloured`.
std::string rank_prefix(int rank, bool coloured);

// The path of a rank's log file in the folder.
std::string log_file(const std::string& folder, int rank);

}  // namespace lockstep
