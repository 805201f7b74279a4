// SPDX-License-Identifier: BSD-3-Clause
// The parts of a diagnosis, each with a file of its own. None waits without a deadline. They leave
// the topic to diagnose(), and may throw instead of finding something broken.
#pragma once

#include "lockstep/comm/backends.h"
#include "tools/doctor/finding.h"

namespace lockstep {

// Its version, its file, and whether it was built with CUDA.
Finding probe_libtorch();
// The library that computes libtorch's matrix products, and how fast it is.
Finding probe_blas();
// Those of the machine, and those that this process may use.
Finding probe_cores();
// What the control group grants of processor time and memory.
Finding probe_cgroup();
// How many libtorch and its BLAS use, and what the environment says about it.
Finding probe_threads();
// What is there, and what limits it.
Finding probe_memory();
// Forks two ranks that reduce tensors and check the sums.
Finding probe_shm();
// The same with two threads of this process.
Finding probe_thread();
// The same alone.
Finding probe_self();
// The same as shm, over loopback.
Finding probe_gloo();
// Which MPI it is. Ranks cannot be started from here.
Finding probe_mpi();
// Whether NCCL can be loaded.
Finding probe_nccl();
// What it takes for the ranks that the environment speaks of, and why.
Finding probe_auto();
// Of a backend that is not built in: how to get it.
Finding not_built(const BackendRow& row);
// What the machine has and what libtorch can use.
Finding probe_gpus();
// What rank this process is, and by whose word.
Finding probe_environment();

}  // namespace lockstep
