// SPDX-License-Identifier: BSD-3-Clause
// The cores, memory and threads that this process may use.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

namespace lockstep {

// The cores in the affinity mask of this process, or of another one of this machine, by the
// kernel's numbers. If the system refuses to tell: {0} for this process, empty for another.
std::vector<int> allowed_cores(pid_t process = 0);

// Caps `cores` at the cgroup's CPU quota, rounded up. At least 1.
int cut_to_quota(int cores);

// Cores that this process may use at once: the allowed ones, capped at the quota.
int available_cores();

// Restricts the calling thread (or another thread of this process, by its id) and the threads that
// it starts to these cores. If the system refuses, nothing changes.
void pin_to_cores(const std::vector<int>& cores, pid_t thread = 0);

// Bytes that each of `processes` processes, including this one, can still allocate. Assumes that
// they share equally what the machine and their control group have left. This process's
// address-space limit applies too.
std::int64_t available_memory(int processes = 1);

// Bytes left of this process's address-space limit (RLIMIT_AS, ulimit -v); nullopt if there is
// none.
std::optional<std::int64_t> address_space_left();

// A warning with the remedy if there are more ranks than cores; else empty.
std::string oversubscription(int ranks, int cores);

// Sets the number of OpenMP and OpenBLAS threads in this process, through the environment and, if
// the libraries are loaded, through their own functions.
void limit_threads(int threads);

// The same in loaded libraries only: programs that are started from here do not inherit it.
void limit_loaded_threads(int threads);

// Call it in the only thread of a forked process. If the parent had called at::set_num_threads, the
// child has lost libtorch's thread pool. libtorch would recreate the pool in its first operation,
// where two concurrent threads may find none ("Invalid thread pool!"). If libtorch is loaded, this
// function makes it recreate the pool now. Like that operation, it sets OpenMP's number of threads
// to libtorch's.
void renew_libtorchs_threads();

}  // namespace lockstep
