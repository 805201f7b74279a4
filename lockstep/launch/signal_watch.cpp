// SPDX-License-Identifier: BSD-3-Clause
// Signal handlers that write to a pipe, and how they are restored.
#include "lockstep/launch/signal_watch.h"

#include <atomic>
#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// A handler can reach only globals.
std::atomic<int> signal_pipe{-1};

void write_down(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe drops the signal; the earlier ones are enough to stop.
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe.load(), &byte, sizeof byte);
  errno = error;
}

}  // namespace

SignalWatch::SignalWatch() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    throw BackendError(fmt::format("cannot make a pipe: {}", reason_of(errno)));
  }
  reader_.reset(ends[0]);
  writer_.reset(ends[1]);
  int none = -1;
  if (!signal_pipe.compare_exchange_strong(none, writer_.get())) {
    writer_.reset();
    throw UsageError("this process already runs ranks; wait until they have ended");
  }
  constexpr std::array kStops{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
  for (std::size_t i = 0; i < kStops.size(); ++i) {
    changed_[i].signal = kStops[i];
    change(changed_[i], write_down);
  }
  changed_[4].signal = SIGPIPE;
  change(changed_[4], SIG_IGN);
  changed_[5].signal = SIGXFSZ;
  change(changed_[5], SIG_IGN);
  changed_[6].signal = SIGCHLD;
  change(changed_[6], SIG_DFL);
}

void SignalWatch::change(Changed& entry, void (*handler)(int)) {
  ::sigaction(entry.signal, nullptr, &entry.before);
  const bool ignored =
      (entry.before.sa_flags & SA_SIGINFO) == 0 && entry.before.sa_handler == SIG_IGN;
  if (ignored && handler == write_down) return;
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  entry.changed = ::sigaction(entry.signal, &action, nullptr) == 0;
}

std::optional<int> SignalWatch::next() {
  unsigned char byte = 0;
  if (::read(reader_.get(), &byte, sizeof byte) == sizeof byte) return byte;
  return std::nullopt;
}

void SignalWatch::restore() {
  if (!writer_) return;
  for (Changed& entry : changed_) {
    if (entry.changed) ::sigaction(entry.signal, &entry.before, nullptr);
    entry.changed = false;
  }
  signal_pipe = -1;
  writer_.reset();
  reader_.reset();
}

SignalsBlocked::SignalsBlocked() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

void SignalsBlocked::restore() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace lockstep
