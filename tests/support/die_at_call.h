// SPDX-License-Identifier: BSD-3-Clause
// Kills this process at one of its calls by which sockets are connected, written and read, in
// whatever library it is made. Needs no ptrace, unlike kill_at_call.h, so that ranks of a real job
// can use it: programs that are linked with die_at_call.cpp and export its functions
// (ENABLE_EXPORTS).
#pragma once

namespace lockstep::testing {

// By SIGKILL, before the n-th call from now is made; 0 for none, which counts all the same.
// last_words() is called first.
void die_at_call(int number, void (*last_words)() = nullptr);

// Since die_at_call.
int calls_made();

}  // namespace lockstep::testing
