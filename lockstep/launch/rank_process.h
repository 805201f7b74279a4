// SPDX-License-Identifier: BSD-3-Clause
// One local rank: a child process in a process group of its own, seen through descriptors.
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

// Runs body() and ends this process, a rank, when that returns or throws; why goes to the pipe that
// leads to RankProcess::last_words().
[[noreturn]] void run_rank(const UniqueFd& last_words, const std::function<void()>& body);

class RankProcess {
 public:
  // Forks. The child leads a process group, dies with the thread that forked it, reads from
  // /dev/null, writes to a pseudo-terminal and, for errors, to a pipe, calls body() with the pipe
  // for its last words as run_rank() does. BackendError if there is no process or descriptor left
  // for it.
  RankProcess(int rank, const std::function<void(const UniqueFd& last_words)>& body);
  RankProcess(RankProcess&&) noexcept = default;

  int rank() const { return rank_; }
  pid_t pid() const { return pid_; }
  // Readable when the process has ended.
  int pidfd() const { return pidfd_.get(); }
  // Why its standard output is a pipe too, as an errno; 0 if it is a terminal.
  int terminal_error() const { return terminal_error_; }
  // Non-blocking; the read ends of its standard output and error.
  UniqueFd& output(OutputStream stream) {
    return stream == OutputStream::out ? output_ : error_output_;
  }

  // How it ended, or nothing if it runs. Does not reap it: its pid, and with it the name of its
  // process group, stays taken until reap().
  std::optional<ExitStatus> poll();
  void reap();
  // To the whole process group.
  void signal(int signal) const;
  // Why it ended, in its own words: a program that could not be executed, an exception. Empty if
  // it left none. Once it has ended.
  std::string last_words();

 private:
  int rank_;
  pid_t pid_ = -1;
  int terminal_error_ = 0;
  UniqueFd pidfd_;
  UniqueFd output_;
  UniqueFd error_output_;
  UniqueFd words_;
  std::optional<ExitStatus> status_;
};

}  // namespace lockstep
