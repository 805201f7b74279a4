// SPDX-License-Identifier: BSD-3-Clause
// Passes lines and the bar to a console, and waits for the terminal.
#include "tools/cli/terminal_log.h"

#include <poll.h>
#include <unistd.h>

#include "tools/cli/ending_signals.h"

namespace lockstep::cli {

TerminalLog::TerminalLog(OutputStream stream) : stream_(stream) {
  erase_at_end(stream == OutputStream::out ? STDOUT_FILENO : STDERR_FILENO);
}

TerminalLog::~TerminalLog() {
  console_.set_status(stream_, "");
  write_all();
  erase_at_end(-1);
}

void TerminalLog::line(const std::string& text) {
  console_.add(stream_, text + "\n");
  draw();
}

void TerminalLog::step(const RunSteps& run, const StepSummary& step) {
  const auto state = meter_.step(run, step);
  if (!state) return;
  state_ = state;
  draw();
}

// The console redraws the bar below each line, so the bar must fit the present width each time.
void TerminalLog::draw() {
  if (state_) {
    console_.set_status(stream_,
                        progress_bar(*state_, terminal_columns(stream_), coloured(stream_)));
  }
  write_all();
}

void TerminalLog::write_all() {
  while (console_.write_some() && !console_.empty()) {
    pollfd entry{console_.descriptor(), POLLOUT, 0};
    ::poll(&entry, 1, -1);
  }
}

}  // namespace lockstep::cli
