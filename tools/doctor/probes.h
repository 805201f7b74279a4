// SPDX-License-Identifier: BSD-3-Clause
// The probes of a diagnosis, and what they find. A probe does not block without a deadline, leaves
// the topic to diagnose(), and may throw instead of returning a broken finding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backends.h"

namespace lockstep {

struct Finding {
  // note: training works, but something is missing or could be better. broken: training would fail.
  enum class State : std::uint8_t { ok, note, broken };

  // "blas", "backend shm"; docs/cli.md lists them all.
  std::string topic = {};
  State state = State::ok;
  std::string found = {};
  // What to do about it; empty if all is well.
  std::string advice = {};
};

// machine_probes.cpp

// The cores of the machine, and those that this process may use.
Finding probe_cores();
// The control group's limits of processor time and memory.
Finding probe_cgroup();
// The threads of libtorch and its BLAS, and the environment's settings for them.
Finding probe_threads();
// The available memory, and its limits.
Finding probe_memory();

// Formats a memory size in MiB or GiB.
std::string in_bytes(std::int64_t bytes);

// library_probes.cpp

// libtorch's version, its file, and whether it was built with CUDA.
Finding probe_libtorch();
// The library that computes libtorch's matrix products, and its speed: the slowest one takes 25
// times as long as the others, and nothing else would show it.
Finding probe_blas();
// The machine's GPUs, and those that libtorch can use.
Finding probe_gpus();

struct Blas {
  // The name that it reports; empty if it is not a known fast library.
  std::string name;
  // Empty if unknown.
  std::string file;
};

// Returns the BLAS that is loaded with libtorch.
Blas find_blas();
// Returns the GFLOP/s of a product of float matrices, with all of the library's threads. Takes 30
// ms with the slowest library.
double measure_product();
Finding judge_blas(const Blas& blas, double gflops);

struct Gpus {
  // All GPUs, by the driver's names, whether or not this process may use them.
  std::vector<std::string> models = {};
  // The number that libtorch can use in this process.
  int usable = 0;
  bool libtorch_has_cuda = false;
  // CUDA_VISIBLE_DEVICES, which may be set and empty.
  std::optional<std::string> visible_devices = {};
};

Gpus find_gpus();
// Returns the names of NVIDIA's GPUs, from the folder in which the driver describes them.
std::vector<std::string> gpu_models(const std::string& folder = "/proc/driver/nvidia/gpus");
Finding judge_gpus(const Gpus& gpus);

// group_probes.cpp

// A backend of the registry: forks two ranks that reduce tensors and check the sums, or finds its
// library. If the backend is not built in, says how to get it.
Finding probe_backend(const BackendRow& row);
// The backend "thread": two threads of this process reduce tensors and check the sums.
Finding probe_thread_backend();
// The backend "self": the same with one rank.
Finding probe_self_backend();
// The backend that auto chooses for the ranks in the environment, and why.
Finding probe_auto_backend();
// This process's rank, and the launcher that set it.
Finding probe_environment();

}  // namespace lockstep
