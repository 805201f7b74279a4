// SPDX-License-Identifier: BSD-3-Clause
// What a rank writes to, and where its launcher reads it.
#pragma once

#include <optional>

#include "lockstep/core/unique_fd.h"

namespace lockstep {

// No program that is executed inherits the ends. Only the reader does not block: a rank's own
// output blocks as a program expects.
struct OutputChannel {
  UniqueFd reader;
  UniqueFd writer;
};

// BackendError if there is no descriptor left.
OutputChannel open_pipe();

// A pseudo-terminal, so that a program's stdio writes each line when it is complete; into a pipe it
// would write in blocks. In raw mode, so bytes pass unchanged; as wide as this process's own
// terminal, if it has one. At the end reading fails with EIO instead of returning 0. Nothing, with
// the reason in errno, if the system has no pseudo-terminals or none is left.
std::optional<OutputChannel> open_terminal();

}  // namespace lockstep
