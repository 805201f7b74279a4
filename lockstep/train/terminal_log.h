// SPDX-License-Identifier: BSD-3-Clause
// The lines of a training run in this process, and on a terminal a progress bar below them.
#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/console.h"
#include "lockstep/train/fit_options.h"
#include "lockstep/train/progress_bar.h"

namespace lockstep {

// The stream is a terminal that can_show_status(). Blocks until it takes the text. Only one object
// at a time.
class TerminalLog {
 public:
  explicit TerminalLog(OutputStream stream);
  // Removes the bar.
  ~TerminalLog();
  TerminalLog(const TerminalLog&) = delete;
  TerminalLog& operator=(const TerminalLog&) = delete;

  // `text` has no line ending.
  void line(const std::string& text);
  void step(const RunSteps& run, const StepSummary& step);
  // Removes the bar until the next step.
  void hide();

  // The errno of the first failed write; 0 if none failed.
  int error() const { return console_.error(stream_); }

 private:
  void draw();
  void write_all();

  OutputStream stream_;
  Console console_;
  ProgressMeter meter_;
  // The newest; nullopt before the first step.
  std::optional<ProgressState> state_;
};

}  // namespace lockstep
