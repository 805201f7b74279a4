// SPDX-License-Identifier: BSD-3-Clause
// Sets libtorch's threads and algorithms, and restores them.
#include "lockstep/train/deterministic_mode.h"

#include <mutex>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "lockstep/core/process/cpu.h"
#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

// Libraries that libtorch does not reach, such as Debian's OpenBLAS, have threads of their own.
void compute_with(int threads) {
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
  limit_loaded_threads(threads);
}

// Process-wide, as the settings are.
std::mutex deterministic_mutex;
int deterministic_objects = 0;
struct {
  int threads;
  bool deterministic;
  bool only_warns;
  bool fills_memory;
} settings_before;

}  // namespace

DeterministicMode::DeterministicMode() : threads_before_(at::get_num_threads()) {
  const std::lock_guard lock(deterministic_mutex);
  if (deterministic_objects++ > 0) {
    set_openmp_threads(1);
    return;
  }
  at::Context& context = at::globalContext();
  settings_before = {.threads = at::get_num_threads(),
                     .deterministic = context.deterministicAlgorithms(),
                     .only_warns = context.deterministicAlgorithmsWarnOnly(),
                     // Filling new memory costs time, and no operator of a step may read it.
                     .fills_memory = libtorch::fill_uninitialized_memory(false)};
  compute_with(1);
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
}

DeterministicMode::~DeterministicMode() {
  const std::lock_guard lock(deterministic_mutex);
  if (--deterministic_objects > 0) {
    set_openmp_threads(threads_before_);
    return;
  }
  at::globalContext().setDeterministicAlgorithms(settings_before.deterministic,
                                                 settings_before.only_warns);
  libtorch::fill_uninitialized_memory(settings_before.fills_memory);
  compute_with(settings_before.threads);
  set_openmp_threads(threads_before_);
}

}  // namespace lockstep
