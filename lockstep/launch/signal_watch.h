// SPDX-License-Identifier: BSD-3-Clause
// Takes the signals that ask a program to stop, for the time that it watches ranks.
#pragma once

#include <array>
#include <optional>

#include <signal.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT do not end this process but show in next(),
// whichever thread the kernel gave them to; one that was ignored stays ignored. SIGPIPE and SIGXFSZ
// are ignored, since writing reports the same as errors, and SIGCHLD has its default, without which
// the ends of ranks could not be waited for. Afterwards all is as it was. There can be one at a
// time in a process: UsageError.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch() { restore(); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when next() has one.
  int descriptor() const { return reader_.get(); }
  std::optional<int> next();

  // What the destructor does; a forked child calls it.
  void restore();

 private:
  struct Changed {
    int signal;
    struct sigaction before;
    bool changed = false;
  };
  void change(Changed& entry, void (*handler)(int));

  UniqueFd reader_;
  UniqueFd writer_;
  std::array<Changed, 7> changed_{};
};

// Holds back all signals of this thread: around a fork, so that the child does not take one with
// its parent's handler.
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
