// SPDX-License-Identifier: BSD-3-Clause
// Decides whether this process may fork ranks: not once libtorch has started its threads.
#pragma once

#include <string>

namespace lockstep {

// False if this process has threads that it did not have when it was loaded: a forked rank would
// hang in libtorch's first operation. Debian's OpenBLAS starts its threads at load and ends them
// before a fork; threads that it starts later count as new. Also false if the process has opened a
// GPU, since CUDA does not work in a fork of a process that has used it. Also false without /proc,
// since then the threads are unknown.
bool may_fork();

// UsageError because of the threads or the GPU, BackendError without /proc. The message names the
// caller and the remedies.
void require_may_fork(const std::string& caller);

}  // namespace lockstep
