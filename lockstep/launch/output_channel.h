// SPDX-License-Identifier: BSD-3-Clause
// Opens the channels that a rank writes to and its launcher reads.
#pragma once

#include <optional>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Both ends close on exec. Only the reader is non-blocking: a rank's own output blocks, as a
// program expects.
struct OutputChannel {
  UniqueFd reader;
  UniqueFd writer;
};

// BackendError if no descriptor is left.
OutputChannel open_pipe();

// A pseudo-terminal, so that a program's stdio writes each line when it is complete; into a pipe it
// would write in blocks. It is in raw mode, so that bytes pass unchanged, and as wide as this
// process's own terminal, if it has one. At the end, reading fails with EIO instead of returning 0.
// nullopt, with the reason in errno, if the system has no pseudo-terminals or none is left.
std::optional<OutputChannel> open_terminal();

}  // namespace lockstep
