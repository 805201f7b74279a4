// SPDX-License-Identifier: BSD-3-Clause
// A processor hint for spin loops.
#pragma once

namespace lockstep {

// For loops that wait for another core's store: leaves the core's resources to its other hardware
// thread for a moment.
inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace lockstep
