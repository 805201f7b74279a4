// SPDX-License-Identifier: BSD-3-Clause
// What this process may use of the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <sys/types.h>

namespace lockstep {

// The cores that this process's affinity mask allows, by the kernel's numbers.
std::vector<int> allowed_cores();

// The number of cores, cut to what the cgroup's CPU quota is worth (rounded up). At least 1.
int cut_to_quota(int cores);

// Cores that this process may use at once: the allowed ones, cut to the quota.
int available_cores();

// Lets the calling thread (or another of this process, by its number), and those that it starts,
// run on these cores alone. Where the system refuses, nothing changes.
void pin_to_cores(const std::vector<int>& cores, pid_t thread = 0);

// Bytes that each of so many processes, this one among them, can still allocate before the machine
// or their control group runs out, if they share alike, or this one's address space does.
std::int64_t available_memory(int processes = 1);

// What the process's limit (RLIMIT_AS, ulimit -v) leaves of its address space, in bytes; nothing if
// there is no limit.
std::optional<std::int64_t> address_space_left();

// Says on standard error that so many ranks share this machine's cores, if they are far more.
void warn_of_oversubscription(int ranks);

// Sets the number of threads that OpenMP and OpenBLAS use in this process, through the environment
// and, where the libraries are loaded already, through their own calls.
void limit_threads(int threads);

// In the only thread of a process that was forked: has libtorch, where it is loaded, make itself
// the pool of threads that it lost in the fork, if the parent had called at::set_num_threads. It
// would do so in the first operation, where two threads at once find no pool ("Invalid thread
// pool!"). Like that operation, it sets OpenMP's number of threads to libtorch's.
void renew_libtorchs_threads();

}  // namespace lockstep
