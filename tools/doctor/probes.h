// SPDX-License-Identifier: BSD-3-Clause
// The probes of a diagnosis. None blocks without a deadline. They leave the topic to diagnose(),
// and may throw instead of returning a broken finding.
#pragma once

#include "lockstep/comm/backends.h"
#include "tools/doctor/finding.h"

namespace lockstep {

// libtorch's version, its file, and whether it was built with CUDA.
Finding probe_libtorch();
// The library that computes libtorch's matrix products, and its speed.
Finding probe_blas();
// The cores of the machine, and those that this process may use.
Finding probe_cores();
// The control group's limits of processor time and memory.
Finding probe_cgroup();
// The threads of libtorch and its BLAS, and the environment's settings for them.
Finding probe_threads();
// The available memory, and its limits.
Finding probe_memory();
// A backend of the registry: forks two ranks that reduce tensors and check the sums, or finds its
// library; or how to get it, if it is not built in.
Finding probe(const BackendRow& row);
// Two threads of this process reduce tensors and check the sums.
Finding probe_thread();
// The same with one rank.
Finding probe_self();
// The backend that auto chooses for the ranks in the environment, and why.
Finding probe_auto();
// The machine's GPUs, and those that libtorch can use.
Finding probe_gpus();
// This process's rank, and the launcher that set it.
Finding probe_environment();

}  // namespace lockstep
