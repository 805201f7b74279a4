// SPDX-License-Identifier: BSD-3-Clause
// Passes lines and the bar to a console, and waits for the terminal.
#include "tools/cli/terminal_log.h"

#include <array>
#include <csignal>
#include <string_view>

#include <poll.h>
#include <unistd.h>

namespace lockstep::cli {
namespace {

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT};

volatile std::sig_atomic_t terminal_fd = STDOUT_FILENO;

// The default action follows, since the signal is blocked until this returns.
void erase_bar_and_end(int signal) {
  constexpr std::string_view kErase = "\r\033[K";
  [[maybe_unused]] const ssize_t count = ::write(terminal_fd, kErase.data(), kErase.size());
  ::raise(signal);
}

// Signals that the program's parent ignores stay ignored.
void replace_action(void (*from)(int), void (*to)(int)) {
  for (const int signal : kEndingSignals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler != from) continue;
    action.sa_handler = to;
    action.sa_flags = to == SIG_DFL ? 0 : static_cast<int>(SA_RESETHAND);
    ::sigaction(signal, &action, nullptr);
  }
}

}  // namespace

TerminalLog::TerminalLog(OutputStream stream) : stream_(stream) {
  terminal_fd = stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO;
  replace_action(SIG_DFL, erase_bar_and_end);
}

TerminalLog::~TerminalLog() {
  console_.set_status(stream_, "");
  write_all();
  replace_action(erase_bar_and_end, SIG_DFL);
}

void TerminalLog::line(const std::string& text) {
  console_.add(stream_, text + "\n");
  write_all();
}

void TerminalLog::step(const RunSteps& run, const StepSummary& step) {
  const auto state = meter_.step(run, step);
  if (!state) return;
  console_.set_status(stream_, progress_bar(*state, terminal_columns(stream_), coloured(stream_)));
  write_all();
}

void TerminalLog::write_all() {
  while (console_.write_some() && !console_.empty()) {
    pollfd entry{console_.descriptor(), POLLOUT, 0};
    ::poll(&entry, 1, -1);
  }
}

}  // namespace lockstep::cli
