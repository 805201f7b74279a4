// SPDX-License-Identifier: BSD-3-Clause
// One local rank: a process in a process group of its own, forked, and seen through descriptors.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/exit_status.h"

namespace lockstep {

// What a rank's code throws to end the rank with this exit code, and to say why in the launcher's
// report. Any other exception ends it with 1 and its what().
struct RankExit {
  int exit_code;
  std::string reason;
};

// Writes what this process has buffered for its streams. A child forked before would write it
// again.
void flush_streams();

// Runs body() and ends this process, a rank, when that returns or throws; why goes to the pipe that
// leads to RankProcess::last_words().
[[noreturn]] void run_rank(const UniqueFd& last_words, const std::function<void()>& body);

// A rank as it was started, and the ends of its streams at which they are read.
struct StartedRank {
  int rank = 0;
  pid_t pid = -1;
  // Why its standard output is a pipe too, as an errno; 0 if it is a terminal.
  int terminal_error = 0;
  UniqueFd output{};
  UniqueFd error_output{};
  UniqueFd last_words{};
};

// The child leads a process group, dies with the thread that forked it, reads from /dev/null,
// writes to a pseudo-terminal and, for errors, to a pipe, calls body() with the pipe
// for its last words as run_rank() does. BackendError if there is no process or descriptor left for
// it.
StartedRank fork_rank(int rank, const std::function<void(const UniqueFd& last_words)>& body);

// What became of a rank, as waitid() has it in si_code and si_status.
struct RankChange {
  int rank = 0;
  int code = 0;
  int status = 0;
};

// Stays a zombie until its parent ends it: its pid, and with it the name of its process group,
// is not given to another process.
class RankProcess {
 public:
  explicit RankProcess(StartedRank started) : started_(std::move(started)) {}

  int rank() const { return started_.rank; }
  pid_t pid() const { return started_.pid; }
  int terminal_error() const { return started_.terminal_error; }
  // Non-blocking; the read ends of its standard output and error.
  UniqueFd& output(OutputStream stream) {
    return stream == OutputStream::out ? started_.output : started_.error_output;
  }

  void take(const RankChange& change);
  // How it ended, or nothing if it runs.
  const std::optional<ExitStatus>& status() const { return status_; }
  // The signal that has stopped it, or 0.
  int stopped_by() const { return stopped_by_; }
  // To the whole process group.
  void signal(int signal) const;
  // Why it ended, in its own words: a program that could not be executed, an exception. Empty if
  // it left none. Once it has ended.
  std::string last_words();

 private:
  StartedRank started_;
  std::optional<ExitStatus> status_;
  int stopped_by_ = 0;
};

}  // namespace lockstep
