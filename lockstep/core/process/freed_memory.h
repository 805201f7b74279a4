// SPDX-License-Identifier: BSD-3-Clause
// Keeps memory that one training step frees for the next step. Otherwise glibc returns it if it
// lies at the heap's end, and every step faults its pages in again.
#pragma once

#include "lockstep/core/environment.h"

namespace lockstep {

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
