// SPDX-License-Identifier: BSD-3-Clause
// Whether this process may fork ranks: not once libtorch has started its threads.
#pragma once

#include <string>

namespace lockstep {

// False if this process has threads that it did not have when it was loaded: a forked rank would
// hang at libtorch's first operation. Debian's OpenBLAS starts its own at load and ends them before
// a fork; any that it starts after that are new ones. False too if it has opened a GPU: CUDA does
// not work in a fork of a process that has used it, with threads or not. And false where nobody can
// tell, for want of /proc.
bool may_fork();

// UsageError for the threads or the GPU, BackendError where nobody can tell. The message names the
// caller and the ways out.
void require_may_fork(const std::string& caller);

}  // namespace lockstep
