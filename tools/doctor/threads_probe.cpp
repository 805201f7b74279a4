// SPDX-License-Identifier: BSD-3-Clause
// Thread counts of libtorch and OpenBLAS, and the variables that set them.
#include <algorithm>

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

constexpr const char* kCounts[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"};

std::string setting(const char* name) {
  const auto value = environment(name);
  return value ? fmt::format("{}={}", name, *value) : fmt::format("{} is not set", name);
}

std::string wait_policy() {
  constexpr const char* kName = "OMP_WAIT_POLICY";
  if (environment(kName)) return setting(kName);
  return setting(kName) + " (`lockstep run` sets it to passive, so that idle threads sleep)";
}

int threads_of_openblas() {
  auto* function = ::dlsym(RTLD_DEFAULT, "openblas_get_num_threads");
  return function == nullptr ? 0 : reinterpret_cast<int (*)()>(function)();
}

}  // namespace

Finding probe_threads() {
  const int libtorch = at::get_num_threads();
  const int openblas = threads_of_openblas();
  const std::string found = fmt::format("libtorch uses {}{}; {}, {}, {}", libtorch,
                                        openblas > 0 ? fmt::format(", OpenBLAS {}", openblas) : "",
                                        setting(kCounts[0]), setting(kCounts[1]), wait_policy());
  try {
    omp_num_threads();
  } catch (const UsageError& error) {  // ranks' launchers refuse it
    return {.state = Finding::State::broken, .found = found, .advice = error.what()};
  }
  try {
    environment_int(kCounts[1], kFrom1);
  } catch (const UsageError& error) {  // OpenBLAS ignores it
    return {.state = Finding::State::note, .found = found, .advice = error.what()};
  }
  if (const int cores = available_cores(); std::max(libtorch, openblas) > cores) {
    return {.state = Finding::State::note,
            .found = found,
            .advice = fmt::format("this process may use {} core{}: set OMP_NUM_THREADS and "
                                  "OPENBLAS_NUM_THREADS to at most that, divided by the ranks, or "
                                  "leave them to `lockstep run`",
                                  cores, cores == 1 ? "" : "s")};
  }
  if (environment("OMP_WAIT_POLICY").value_or("") == "active") {
    return {.state = Finding::State::note,
            .found = found,
            .advice =
                "unset OMP_WAIT_POLICY: idle threads of OpenMP that do not sleep take the "
                "cores from those of the BLAS"};
  }
  return {.found = found};
}

}  // namespace lockstep
