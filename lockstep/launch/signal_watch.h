// SPDX-License-Identifier: BSD-3-Clause
// Catches the signals that ask a program to stop, while it watches ranks.
#pragma once

#include <array>
#include <optional>

#include <signal.h>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// While this object lives, SIGINT, SIGTERM, SIGHUP and SIGQUIT do not end this process but appear
// in next(), whichever thread receives them; ignored signals stay ignored. SIGPIPE and SIGXFSZ are
// ignored, since writing reports the same as errors. SIGCHLD has its default action, without which
// the ranks' ends could not be waited for. The destructor restores everything. UsageError if the
// process already has such an object.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch() { restore(); }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  // Readable when next() has a signal.
  int descriptor() const { return reader_.get(); }
  std::optional<int> next();

  // Does the destructor's work; a forked child calls it.
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
