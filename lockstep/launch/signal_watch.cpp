// SPDX-License-Identifier: BSD-3-Clause
// Signal handlers that write to a pipe, and how they are restored.
#include "lockstep/launch/signal_watch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

// A handler can reach only globals.
std::atomic<int> signal_pipe{-1};

void record_signal(int signal) {
  const int error = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A full pipe drops the signal. It holds thousands of earlier ones.
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe.load(), &byte, sizeof byte);
  errno = error;
}

constexpr std::array kStops{SIGINT, SIGTERM, SIGHUP, SIGQUIT};
// Without the real-time signals, whose numbers the C library chooses at run time.
constexpr std::array kNotices{SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF,
                              SIGXCPU, SIGIO,   SIGPWR,  SIGSTKFLT, SIGURG};

}  // namespace

SignalMeaning meaning_of(int signal) {
  if (std::ranges::count(kStops, signal) > 0) return SignalMeaning::stop;
  if (signal == SIGTSTP) return SignalMeaning::suspend;
  return signal == SIGCONT ? SignalMeaning::resume : SignalMeaning::notice;
}

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
  for (const int signal : kStops) change(signal, record_signal);
  for (const int signal : {SIGTSTP, SIGCONT}) change(signal, record_signal);
  for (const int signal : kNotices) change(signal, record_signal);
  for (int signal = SIGRTMIN; signal <= SIGRTMAX; ++signal) change(signal, record_signal);
  change(SIGPIPE, SIG_IGN);
  change(SIGXFSZ, SIG_IGN);
  change(SIGCHLD, SIG_DFL);
}

void SignalWatch::change(int signal, void (*handler)(int)) {
  Changed entry{.signal = signal, .before = {}};
  ::sigaction(signal, nullptr, &entry.before);
  const bool has_handler = (entry.before.sa_flags & SA_SIGINFO) != 0;
  const bool ignored = !has_handler && entry.before.sa_handler == SIG_IGN;
  const bool by_default = !has_handler && entry.before.sa_handler == SIG_DFL;
  if (handler == record_signal) {
    if (ignored) return;
    if (!by_default && meaning_of(signal) != SignalMeaning::stop) return;
  }
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(signal, &action, nullptr) == 0) changed_.push_back(entry);
}

void SignalWatch::suspend_process() {
  pollfd further{reader_.get(), POLLIN, 0};
  if (::poll(&further, 1, 0) == 1) return;
  struct sigaction watched {};
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  ::sigemptyset(&by_default.sa_mask);
  ::sigaction(SIGTSTP, &by_default, &watched);
  ::raise(SIGTSTP);
  ::sigaction(SIGTSTP, &watched, nullptr);
}

std::optional<int> SignalWatch::next() {
  unsigned char byte = 0;
  if (::read(reader_.get(), &byte, sizeof byte) == sizeof byte) return byte;
  return std::nullopt;
}

std::optional<int> SignalWatch::next_stop() {
  while (const auto signal = next()) {
    if (meaning_of(*signal) == SignalMeaning::stop) return signal;
    if (meaning_of(*signal) == SignalMeaning::suspend) suspend_process();
  }
  return std::nullopt;
}

void SignalWatch::restore() {
  for (const Changed& entry : changed_) ::sigaction(entry.signal, &entry.before, nullptr);
  changed_.clear();
  leave_to_parent();
}

void SignalWatch::leave_to_parent() {
  if (!writer_) return;
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
