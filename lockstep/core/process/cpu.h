// SPDX-License-Identifier: BSD-3-Clause
// The cores and threads that this process may use, and whether the load exceeds the cores.
#pragma once

#include <chrono>
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

// Sets the number of OpenMP and OpenBLAS threads in this process, through the environment and, if
// the libraries are loaded, through their own functions.
void limit_threads(int threads);

// Like limit_threads(), but only in loaded libraries: programs that are started from here do not
// inherit it.
void limit_loaded_threads(int threads);

// Sets the number of OpenMP threads of the operations that the calling thread begins, in a process
// that has loaded libtorch. libtorch sets its own number in a thread's first operation: call
// at::get_num_threads() before, so that it does not do so later.
void set_openmp_threads(int threads);

// Call it in the only thread of a forked process. If the parent had called at::set_num_threads, the
// child has lost libtorch's thread pool. libtorch would recreate the pool in its first operation,
// where two concurrent threads may find none ("Invalid thread pool!"). If libtorch is loaded, this
// function makes it recreate the pool now. Like that operation, it sets OpenMP's number of threads
// to libtorch's.
void renew_libtorchs_threads();

// A warning with the remedy if there are more ranks than cores; else empty.
std::string oversubscription(int ranks, int cores);

// The number of this process's cores that were idle during the window, such as 1.5. The caller
// sleeps meanwhile. nullopt if /proc does not tell.
std::optional<double> idle_cores(std::chrono::milliseconds window);

// Like the function above, for the given cores, between two texts of /proc/stat.
std::optional<double> idle_cores(const std::string& before, const std::string& after,
                                 const std::vector<int>& cores);

// Measures how long the thread that made it waits for a core while it could run.
class CoreWait {
 public:
  CoreWait();
  // The share of the time since construction, from 0 to 1. Call it in the same thread. nullopt if
  // /proc does not tell.
  std::optional<double> share() const;

 private:
  struct Times {
    double running = 0;
    double waiting = 0;
  };
  static std::optional<Times> times();

  std::optional<Times> start_;
};

// A sentence with the remedy if a rank waited for a core for a tenth of its time or more; else
// empty. At most 100 characters.
std::string overload(std::optional<double> core_wait);

}  // namespace lockstep
