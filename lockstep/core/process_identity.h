// SPDX-License-Identifier: BSD-3-Clause
// A process, told from all others that have its id before or after it, or on another machine.
#pragma once

#include <string>

#include <sys/types.h>

namespace lockstep {

struct ProcessIdentity {
  pid_t pid = 0;
  // When it started, in clock ticks since the boot of its machine.
  std::string started{};
  // The boot of its machine, and its PID namespace. Empty where /proc does not tell.
  std::string machine{};

  static ProcessIdentity own();
  // Text without spaces at either end, and back.
  std::string as_text() const;
  static ProcessIdentity from_text(const std::string& text);

  // Whether the process is known to have ended: false for one of another machine or PID namespace,
  // of which nothing is known. A zombie has ended.
  bool has_ended() const;
};

}  // namespace lockstep
