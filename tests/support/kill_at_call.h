// SPDX-License-Identifier: BSD-3-Clause
// Kills a process, a single child, at each of its system calls in turn, by ptrace.
#pragma once

#include <functional>
#include <string>

namespace lockstep::testing {

// Why this machine lets no process trace its child; empty if it does.
std::string why_no_tracing();

// Runs the function in a child process and kills that with SIGKILL as it enters its system call of
// this number, counted from 1; the call is not made. False if the child made fewer calls and has
// ended. Throws if the function did.
bool killed_at_call(int number, const std::function<void()>& function);

}  // namespace lockstep::testing
