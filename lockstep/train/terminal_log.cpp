// SPDX-License-Identifier: BSD-3-Clause
// Passes lines and the bar to a console, and waits for the terminal.
#include "lockstep/train/terminal_log.h"

#include <poll.h>

namespace lockstep {

TerminalLog::TerminalLog(OutputStream stream) : stream_(stream) {}

TerminalLog::~TerminalLog() {
  hide();
}

void TerminalLog::hide() {
  console_.set_status(stream_, "");
  write_all();
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

}  // namespace lockstep
