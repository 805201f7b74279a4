// SPDX-License-Identifier: BSD-3-Clause
// Measures the peak memory of this process.
#pragma once

#include <cstdint>

namespace lockstep {

// peak_memory() counts from this call on.
void reset_peak_memory();

// The most bytes in use at once: private memory, plus this process's proportional part of memory
// shared with other ranks. Mapped files, such as libraries, do not count. 0 if the kernel does not
// report it.
std::int64_t peak_memory();

}  // namespace lockstep
