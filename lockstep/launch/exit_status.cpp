// SPDX-License-Identifier: BSD-3-Clause
// Describes exit codes and signals, with the likely cause of a signal.
#include "lockstep/launch/exit_status.h"

#include <fmt/format.h>
#include <string.h>

namespace lockstep {
namespace {

const char* likely_cause(int signal) {
  switch (signal) {
    case SIGSEGV:
      return ", an invalid memory access";
    case SIGABRT:
      return ", likely an uncaught exception or a failed assertion";
    case SIGBUS:
      return ", likely a mapped file or shared memory that ran out of space";
    case SIGFPE:
      return ", likely an integer division by zero";
    case SIGILL:
      return ", likely built for another processor";
    default:
      return "";
  }
}

}  // namespace

ExitStatus ExitStatus::from(int code, int status) {
  ExitStatus end;
  (code == CLD_EXITED ? end.exit_code : end.signal) = status;
  return end;
}

std::string ExitStatus::words(const MemoryKills& kills) const {
  if (signal == 0) return fmt::format("exit code {}", exit_code);
  if (signal == SIGKILL) return kills.words();
  return fmt::format("killed by {}{}", signal_words(signal), likely_cause(signal));
}

std::string signal_words(int signal) {
  const char* name = ::sigabbrev_np(signal);
  if (name == nullptr) return fmt::format("signal {}", signal);
  return fmt::format("signal {} (SIG{})", signal, name);
}

}  // namespace lockstep
