// SPDX-License-Identifier: BSD-3-Clause
// Memory that a training step frees, and that the next one needs again
// (docs/decisions/0007-ranks-keep-freed-memory.md).
#pragma once

#include "lockstep/launch/rank_environment.h"

namespace lockstep {

// Variables with which programs that are started keep freed memory instead of handing it back to
// the system. glibc reads them; other allocators do not know them.
EnvironmentVariables keep_freed_memory_environment();

// The same for this process, where the environment says nothing of it. Once, in its only thread.
void keep_freed_memory();

// Hands what is free now back to the system all the same, if glibc allocates. From any thread. Not
// in every step: what is needed again has to be cleared by the system first.
void give_back_freed_memory();

}  // namespace lockstep
