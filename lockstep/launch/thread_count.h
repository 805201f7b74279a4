// SPDX-License-Identifier: BSD-3-Clause
// Whether this process may fork ranks: not once libtorch has started its threads.
#pragma once

#include <string>

namespace lockstep {

// Threads of this process now, and when it was loaded (Debian's OpenBLAS starts its own at load,
// and they survive a fork).
int thread_count();
int thread_count_at_load();

// UsageError if there are more than at load: a forked rank would hang at its first operation. The
// message names the caller and the ways out.
void require_no_new_threads(const std::string& caller);

}  // namespace lockstep
