// SPDX-License-Identifier: BSD-3-Clause
// Why a job ended: the rank that failed first.
#pragma once

#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep {

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
};

}  // namespace lockstep
