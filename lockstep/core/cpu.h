// SPDX-License-Identifier: BSD-3-Clause
// What this process may use of the machine.
#pragma once

#include <cstdint>

namespace lockstep {

// Cores that this process may run on: the affinity mask, cut to the cgroup's CPU quota (rounded
// up). At least 1.
int available_cores();

// Bytes that can still be allocated before the machine or the process's cgroup runs out.
std::int64_t available_memory();

// Sets the number of threads that OpenMP and OpenBLAS use in this process, through the environment
// and, where the libraries are loaded already, through their own calls.
void limit_threads(int threads);

}  // namespace lockstep
