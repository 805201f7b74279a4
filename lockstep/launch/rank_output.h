// SPDX-License-Identifier: BSD-3-Clause
// Passes one rank's output on, in lines, to the screen, the log file and the report.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/rank_reports.h"
#include "lockstep/launch/stack_trace.h"

namespace lockstep {

// A line of a rank's output, or a part of one that came in parts.
struct OutputPart {
  OutputLine line;
  bool ends_line = true;
};

class RankOutput {
 public:
  using Sink = std::function<void(const OutputPart&)>;

  // How much is remembered for the report, and at how many bytes a line without an end is cut.
  static constexpr std::size_t kRememberedLines = 20;
  static constexpr std::size_t kRememberedLineBytes = 1000;
  static constexpr std::size_t kLongestLine = std::size_t{1} << 20;
  // How long the beginning of a line waits for the rest.
  static constexpr std::chrono::milliseconds kUnfinishedLineDelay{400};

  // Each whole line goes to the sink. A log file, unless its name is empty, gets the lines of both
  // streams; BackendError if it cannot be opened.
  RankOutput(int rank, Sink sink, const std::string& log_file);

  void add(OutputStream stream, std::string_view bytes);
  // The stream ended; its unfinished line counts as a line.
  void finish(OutputStream stream);

  // Passes on what has arrived of an unfinished line, such as a progress bar or a prompt, if it has
  // waited long enough. Call it when the rank has nothing more to read: the rest of a long line may
  // be on its way.
  void pass_on_unfinished(OutputStream stream);
  // When there is something for pass_on_unfinished(); nullopt if no line is unfinished.
  std::optional<Deadline> next_unfinished() const;

  // Why the log file lacks lines from some point on: "cannot write the log file ...: No space left
  // on device". Empty while it is complete.
  const std::string& log_error() const { return log_error_; }

  // The last lines, without libtorch's stack traces, which would displace the lines before them.
  std::vector<std::string> last_lines() const { return {last_lines_.begin(), last_lines_.end()}; }
  // Closes this process's copy of the log file. Call it in a forked child.
  void leave_to_parent() { log_.reset(); }

 private:
  // The state of one stream.
  struct Line {
    // The bytes that have not been passed on, and when they will be, unfinished or not.
    std::string held{};
    std::optional<Deadline> pass_on_at{};
    // Whether a part of it has been passed on.
    bool begun = false;
    // What a terminal shows of the parts so far: the text after the last carriage return.
    std::string visible{};
    bool returned = false;
    StackTraceFilter traces{};
  };

  Line& line(OutputStream stream) { return lines_[stream == OutputStream::err]; }
  void pass_on(OutputStream stream, std::string_view text, bool ends_line);
  void remember(Line& line, std::string_view text, bool ends_line);
  void write_log(std::string_view bytes);

  int rank_;
  Sink sink_;
  std::string log_file_;
  UniqueFd log_;
  LineMixer log_lines_;
  std::string log_error_;
  std::array<Line, 2> lines_{};
  std::deque<std::string> last_lines_;
};

// "[rank 2] ", in one of six colours if `coloured`. `name` is the word before the number.
std::string rank_prefix(int rank, bool coloured, const char* name = "rank");

// The path of a rank's log file in the folder: rank_2.log.
std::string log_file(const std::string& folder, int rank, const char* name = "rank");

}  // namespace lockstep
