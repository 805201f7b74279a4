// SPDX-License-Identifier: BSD-3-Clause
// Public. Identifies a process across reuse of its id and across machines.
#pragma once

#include <string>

#include <sys/types.h>

namespace lockstep {

struct ProcessIdentity {
  pid_t pid = 0;
  // Start time, in clock ticks since its machine booted.
  std::string started{};
  // Boot id and PID namespace of its machine. Empty if /proc does not show them.
  std::string machine{};

  static ProcessIdentity own();
  // Text without leading or trailing spaces; from_text() reads it back.
  std::string as_text() const;
  static ProcessIdentity from_text(const std::string& text);

  // Whether the process is known to have ended. False for a process of another machine or PID
  // namespace, about which nothing is known. A zombie has ended.
  bool has_ended() const;
};

}  // namespace lockstep
