// SPDX-License-Identifier: BSD-3-Clause
// The memory of this process: what it can still allocate, its peak, and memory that it has freed.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/environment.h"

namespace lockstep {

// Bytes that each of `processes` processes, including this one, can still allocate. Assumes that
// they share equally what the machine and their control group have left. This process's
// address-space limit applies too.
std::int64_t available_memory(int processes = 1);

// Bytes left of this process's address-space limit (RLIMIT_AS, ulimit -v); nullopt if there is
// none.
std::optional<std::int64_t> address_space_left();

// Makes peak_memory() count from now on.
void reset_peak_memory();

// The most bytes in use at once: private memory, plus this process's proportional part of memory
// shared with other ranks. Mapped files, such as libraries, do not count. 0 if the kernel does not
// report it.
std::int64_t peak_memory();

// The functions below are for memory that one training step frees and the next one needs. By
// default, glibc returns it to the system if it lies at the heap's end, and every step faults its
// pages in again.

// Variables that make started programs keep freed memory instead of returning it to the system.
// Only glibc reads them.
EnvironmentVariables keep_freed_memory_environment();

// The same for this process, unless the environment sets it. Call it once, in the process's only
// thread.
void keep_freed_memory();

// Returns memory that is free now to the system, if glibc allocates. Callable from any thread. Do
// not call it in every step: the system must clear returned memory before it can be used again. The
// first backward does, once for each bucket, since the gradients that a bucket has taken in would
// add to a rank's peak.
void give_back_freed_memory();

}  // namespace lockstep
