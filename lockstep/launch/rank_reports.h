// SPDX-License-Identifier: BSD-3-Clause
// Public. What the launcher passes on about its ranks: their lines, a status line, and why the job
// ended.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

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
// output. There is no such line if the stream is not a terminal, or if TERM is dumb.
struct StatusLine {
  OutputStream stream = OutputStream::out;
  // When a rank changes this key of the launcher's store, the line becomes render(value, columns):
  // printable characters and colours, narrower than the terminal, whose size may change. Must not
  // throw or block.
  std::string key{};
  std::function<std::string(const std::string& value, int columns)> render{};
};

struct RankFailure {
  // The rank's number in the whole job, over all machines.
  int rank;
  // 0 for a rank on another machine.
  pid_t pid;
  // As a shell reports it: 128 + signal, or the exit code, which may be 0; 1 if it did not end by
  // itself.
  int exit_code;
  // The signal that killed it, or 0.
  int signal;
  // As text: "exit code 3", "killed by signal 9 (SIGKILL), ...", an exception's message, "ended
  // with code 0 before the others; rank 0 reports: ...", "stopped by signal 19 (SIGSTOP); ...".
  std::string cause;
  // From both streams, the newest last.
  std::vector<std::string> last_lines;
  // What messages call it, if not "rank R of N" with its number and those of the job's ranks: in an
  // elastic job, "rank 1 of 3" of the last generation with it, or "member 4" if no generation had
  // it.
  std::string name{};
};

}  // namespace lockstep
