// SPDX-License-Identifier: BSD-3-Clause
// Traces a child from system call to system call, and kills it at one of them.
#include "support/kill_at_call.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>

#include <fmt/format.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::testing {
namespace {

constexpr int kSystemCall = SIGTRAP | 0x80;
constexpr int kNotTraced = 99;

[[noreturn]] void be_traced(const std::function<void()>& function) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kNotTraced);
  ::raise(SIGSTOP);
  try {
    function();
    ::_exit(0);
  } catch (...) {
    ::_exit(1);
  }
}

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) throw std::runtime_error("waitpid failed");
  }
  return status;
}

// Its first stop, or its end if it is not traced.
int start_traced(pid_t pid) {
  const int status = wait_for(pid);
  if (WIFSTOPPED(status)) {
    ::ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  }
  return status;
}

}  // namespace

std::string why_no_tracing() {
  const pid_t pid = ::fork();
  if (pid == 0) be_traced([] {});
  const int status = start_traced(pid);
  if (!WIFSTOPPED(status)) return "a process may not be traced by its parent here";
  ::kill(pid, SIGKILL);
  wait_for(pid);
  return "";
}

bool killed_at_call(int number, const std::function<void()>& function) {
  const pid_t pid = ::fork();
  if (pid == 0) be_traced(function);
  int status = start_traced(pid);
  bool inside = false;
  for (int entered = 0; WIFSTOPPED(status);) {
    int signal = 0;
    if (WSTOPSIG(status) == kSystemCall) {
      inside = !inside;
      if (inside && ++entered == number) {
        ::kill(pid, SIGKILL);
        wait_for(pid);
        return true;
      }
    } else if (WSTOPSIG(status) != SIGSTOP) {
      signal = WSTOPSIG(status);
    }
    ::ptrace(PTRACE_SYSCALL, pid, nullptr, signal);
    status = wait_for(pid);
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw std::runtime_error(fmt::format("the traced function failed: status {:#x}", status));
  }
  return false;
}

}  // namespace lockstep::testing
