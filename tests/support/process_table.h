// SPDX-License-Identifier: BSD-3-Clause
// What runs on this machine, as a test sees it that wants nothing left behind.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep::testing {

// A text that no other test's processes have in their environment: put it into the environment of
// what a test starts.
std::string unique_mark();

// Processes, but zombies and this one, whose environment held the text when they were executed.
int count_marked(const std::string& mark);

// The same processes by their ids, of those that were executed with all these variables, each as
// NAME=value.
std::vector<pid_t> processes_with(const std::vector<std::string>& variables);

// The children of the process's main thread, in the order in which they were made.
std::vector<pid_t> children_of(pid_t parent);

// The state of a process in /proc: 'R', 'S', 'Z', ...; '\0' if there is none.
char state_of(pid_t process);

// How long the process's main thread has been ready to run without having a core; a wait counts
// once it is over. Zero if the process has gone, or if the kernel does not count this.
std::chrono::nanoseconds waited_for_a_core(pid_t process);

// Open descriptors of this process.
int count_descriptors();

// Asks again every few milliseconds until the condition holds; false after the span.
bool eventually(const std::function<bool()>& condition,
                std::chrono::milliseconds span = std::chrono::seconds(50));

}  // namespace lockstep::testing
