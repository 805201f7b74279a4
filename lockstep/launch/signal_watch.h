// SPDX-License-Identifier: BSD-3-Clause
// Catches the signals that a program and its ranks may get, while it watches them.
#pragma once

#include <optional>
#include <vector>

#include <signal.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// What the sender of a signal wants.
enum class SignalMeaning {
  // SIGINT, SIGTERM, SIGHUP, SIGQUIT.
  stop,
  // SIGTSTP, as Ctrl-Z sends it.
  suspend,
  // SIGCONT.
  resume,
  // To tell the ranks something: SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU, SIGIO,
  // SIGPWR, SIGSTKFLT, SIGURG and the real-time signals. Batch systems announce the end of a job's
  // time with one of them.
  notice,
};

SignalMeaning meaning_of(int signal);

// While this object lives, the signals of SignalMeaning do not act on this process but appear in
// next(), whichever thread receives them. Ignored signals stay ignored. A handler of the program's
// own is replaced for the signals that stop it, and kept for all others, which then do not appear.
// SIGPIPE and SIGXFSZ are ignored, since writing reports the same as errors. SIGCHLD has its
// default action, without which the ranks' ends could not be waited for. The destructor restores
// everything. UsageError if the process already has such an object.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch() { restore(); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when next() has a signal.
  int descriptor() const { return reader_.get(); }
  std::optional<int> next();
  // For a launcher that has no ranks at the moment: the next signal that stops it; nullopt if none
  // has arrived. Suspends this process if a signal wants that, and drops all other signals.
  std::optional<int> next_stop();

  // Stops this process as SIGTSTP does by default; returns once SIGCONT has continued it. Returns
  // at once if next() has a further signal, which may be that SIGCONT, or if the kernel does not
  // stop this process because no shell's job control watches it.
  void suspend_process();

  // In a forked child: closes the descriptors. The signals stay as they are until restore().
  void leave_to_parent();
  // Does the destructor's work; a forked child calls it.
  void restore();

 private:
  struct Changed {
    int signal;
    struct sigaction before;
  };
  void change(int signal, void (*handler)(int));

  UniqueFd reader_;
  UniqueFd writer_;
  std::vector<Changed> changed_;
};

// Blocks all signals of this thread around a fork, so that the child does not handle one with its
// parent's handler.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked() { restore(); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  void restore();

 private:
  sigset_t before_;
};

}  // namespace lockstep
