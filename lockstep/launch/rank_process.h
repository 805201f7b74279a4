// SPDX-License-Identifier: BSD-3-Clause
// Forks one local rank, and represents it in the launcher.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <sys/types.h>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/exit_status.h"

namespace lockstep {

// A rank's code throws this to end the rank with this exit code and to give the reason in the
// launcher's report. Any other exception ends the rank with 1 and its what().
struct RankExit {
  int exit_code;
  std::string reason;
};

// Flushes this process's stream buffers. Otherwise a child forked now would write them again.
void flush_streams();

// Runs body() in this process, a rank, and ends the process when body() returns or throws. The
// reason goes to the pipe behind RankProcess::last_words().
[[noreturn]] void run_rank(const UniqueFd& last_words, const std::function<void()>& body);

// A rank to start, and its place: the cores and the GPU that it uses.
struct PlacedRank {
  int rank = 0;
  int place = 0;
  // Its number among the members of all hosts, if it is to join an elastic job of several.
  std::optional<int> member = {};

  bool operator==(const PlacedRank&) const = default;
};

// A started rank, with the read ends of its streams, which do not block.
struct StartedRank {
  int rank = 0;
  // -1 if it could not be started.
  pid_t pid = -1;
  // The errno that explains why its standard output is a pipe; 0 if it is a terminal.
  int terminal_error = 0;
  UniqueFd output{};
  UniqueFd error_output{};
  UniqueFd last_words{};
};

// Forks a rank. The child leads a process group, dies with the thread that forked it, reads from
// /dev/null, prints to a pseudo-terminal, and writes its standard error to a pipe. It calls body()
// with the pipe for its last words and ends as in run_rank(). BackendError if the system has no
// process or descriptor left.
StartedRank fork_rank(int rank, const std::function<void(const UniqueFd& last_words)>& body);

// A change of a rank's state, with waitid()'s si_code and si_status.
struct RankChange {
  int rank = 0;
  int code = 0;
  int status = 0;
};

// A rank as seen by its launcher. After its end it stays a zombie until the keeper ends, so that no
// other process gets its pid, which names its process group.
class RankProcess {
 public:
  explicit RankProcess(StartedRank started) : started_(std::move(started)) {}

  int rank() const { return started_.rank; }
  pid_t pid() const { return started_.pid; }
  int terminal_error() const { return started_.terminal_error; }
  // The read ends of its standard output and error.
  UniqueFd take_output() { return std::move(started_.output); }
  UniqueFd take_error_output() { return std::move(started_.error_output); }

  void take(const RankChange& change);
  // How it ended; nullopt while it runs.
  const std::optional<ExitStatus>& status() const { return status_; }
  // The signal that has stopped it, or 0.
  int stopped_by() const { return stopped_by_; }
  // Signals the whole process group.
  void signal(int signal) const;
  // Why it ended, in its own words: a program that could not be executed, an exception. Empty if it
  // left none. Call it after the rank has ended.
  std::string last_words();

 private:
  StartedRank started_;
  std::optional<ExitStatus> status_;
  int stopped_by_ = 0;
};

}  // namespace lockstep
