// SPDX-License-Identifier: BSD-3-Clause
// One local rank: how its process is forked, and how the launcher sees it.
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

// Runs body() in this process, a rank, and ends the process when that returns or throws; the reason
// goes to the pipe that leads to RankProcess::last_words().
[[noreturn]] void run_rank(const UniqueFd& last_words, const std::function<void()>& body);

// A rank as it was started, and the ends of its streams at which they are read.
struct StartedRank {
  int rank = 0;
  pid_t pid = -1;
  // Why its standard output is a pipe and not a terminal, as an errno; 0 if it is a terminal.
  int terminal_error = 0;
  UniqueFd output{};
  UniqueFd error_output{};
  UniqueFd last_words{};
};

// Forks a rank. The child leads a process group, dies with the thread that forked it, reads from
// /dev/null, writes to a pseudo-terminal, and writes its errors to a pipe. It calls body() with the
// pipe for its last words, and ends as in run_rank(). BackendError if there is no process or
// descriptor left for it.
StartedRank fork_rank(int rank, const std::function<void(const UniqueFd& last_words)>& body);

// A change of a rank's state, as waitid() reports it in si_code and si_status.
struct RankChange {
  int rank = 0;
  int code = 0;
  int status = 0;
};

// A rank as its launcher sees it. When it has ended it stays a zombie until the keeper ends, so
// that no other process gets its pid, which names its process group.
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
