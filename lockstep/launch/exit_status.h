// SPDX-License-Identifier: BSD-3-Clause
// How a process ended, as numbers and as text.
#pragma once

#include <string>

#include <signal.h>

#include "lockstep/launch/memory_kills.h"

namespace lockstep {

struct ExitStatus {
  // The signal that killed it, or 0.
  int signal = 0;
  // The argument of exit(), unless a signal killed it.
  int exit_code = 0;

  // From waitid()'s si_code and si_status.
  static ExitStatus from(int code, int status);

  bool success() const { return signal == 0 && exit_code == 0; }
  // As a shell reports it: 128 + signal, or the exit code.
  int code() const { return signal != 0 ? 128 + signal : exit_code; }
  // "exit code 3", "killed by signal 11 (SIGSEGV), an invalid memory access"; for
  // SIGKILL, its likely sender.
  std::string words(const MemoryKills& kills) const;
};

// "signal 9 (SIGKILL)"
std::string signal_words(int signal);

}  // namespace lockstep
