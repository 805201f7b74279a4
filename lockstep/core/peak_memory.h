// SPDX-License-Identifier: BSD-3-Clause
// How much memory this process has needed.
#pragma once

#include <cstdint>

namespace lockstep {

// peak_memory() counts from here on.
void reset_peak_memory();

// The most bytes that were in use at once: private memory, and this process's part of what it
// shares with other ranks; what is mapped from files, such as libraries, does not count. 0 if the
// kernel does not tell.
std::int64_t peak_memory();

}  // namespace lockstep
