// SPDX-License-Identifier: BSD-3-Clause
// What a process that trains does before Ctrl-C or another signal ends it: it removes its bar from
// the terminal, and says from which checkpoint --resume would continue.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep::cli {

// Handles SIGINT, SIGTERM, SIGHUP and SIGQUIT during its lifetime, and then lets them end the
// process as usual. Signals that the process ignores stay ignored. Only one object at a time.
class EndingSignals {
 public:
  // `folder`: the folder of checkpoints, if this process shall say something about it, on standard
  // error.
  explicit EndingSignals(const std::optional<std::filesystem::path>& folder);
  ~EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;
};

// The terminal whose last line EndingSignals erases; -1 for none.
void erase_at_end(int terminal_fd);

// "--resume would continue from checkpoints/step-000000000938", or that there is no checkpoint yet.
std::string resume_note(const std::filesystem::path& folder);

}  // namespace lockstep::cli
