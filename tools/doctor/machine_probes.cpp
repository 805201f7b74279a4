// SPDX-License-Identifier: BSD-3-Clause
// What this process may use of the machine: cores, processor time, threads and memory.
#include <algorithm>
#include <chrono>

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cgroup.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/memory.h"
#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

constexpr const char* kThreadCounts[] = {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"};

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

std::string shared_memory_folder() {
  struct statvfs file_system {};
  if (::statvfs("/dev/shm", &file_system) != 0) return "no /dev/shm";
  const auto size = static_cast<std::int64_t>(file_system.f_blocks * file_system.f_frsize);
  return in_bytes(size) + " in /dev/shm";
}

}  // namespace

std::string in_bytes(std::int64_t bytes) {
  constexpr double kMebibyte = 1 << 20;
  const double size = static_cast<double>(bytes) / kMebibyte;
  return size < 1024 ? fmt::format("{:.0f} MiB", size) : fmt::format("{:.1f} GiB", size / 1024);
}

Finding probe_cores() {
  const auto allowed = allowed_cores();
  const auto idle = idle_cores(std::chrono::milliseconds(300));
  Finding finding{.found = fmt::format(
                      "{} in this machine; the affinity mask allows {} ({}); with the quota, {} at "
                      "once{}",
                      ::sysconf(_SC_NPROCESSORS_ONLN), allowed.size(), fmt::join(allowed, ","),
                      available_cores(),
                      idle ? fmt::format("; {:.1f} of {} idle", *idle, allowed.size()) : "")};
  if (idle && *idle < 0.75 * static_cast<double>(allowed.size())) {
    finding.state = Finding::State::note;
    finding.advice =
        "the load exceeds the cores if a job uses all of them: its ranks wait for each other and "
        "for a core, and steps of less than a millisecond take many times as long. Stop other "
        "programs, or start at most one rank for each idle core";
  }
  return finding;
}

Finding probe_cgroup() {
  const Cgroup cgroup;
  const auto quota = cgroup.cpu_quota();
  const auto memory = cgroup.memory_limit();
  return {.found = fmt::format("CPU quota: {}; memory limit: {}",
                               quota ? fmt::format("{:.2f} cores", *quota) : "none",
                               memory ? in_bytes(*memory) : "none")};
}

Finding probe_threads() {
  const int libtorch = at::get_num_threads();
  const int openblas = threads_of_openblas();
  const std::string found =
      fmt::format("libtorch uses {}{}; {}, {}, {}", libtorch,
                  openblas > 0 ? fmt::format(", OpenBLAS {}", openblas) : "",
                  setting(kThreadCounts[0]), setting(kThreadCounts[1]), wait_policy());
  try {
    omp_num_threads();
  } catch (const UsageError& error) {  // ranks' launchers refuse it
    return {.state = Finding::State::broken, .found = found, .advice = error.what()};
  }
  try {
    environment_int(kThreadCounts[1], kFrom1);
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

Finding probe_memory() {
  const auto total = std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
  const std::string found =
      fmt::format("{} available of {}; {}, which Lockstep does not need",
                  in_bytes(available_memory()), in_bytes(total), shared_memory_folder());
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return {.found = found};
  }
  return {.state = Finding::State::note,
          .found = fmt::format("{}; the address space of a process is limited to {} (RLIMIT_AS)",
                               found, in_bytes(static_cast<std::int64_t>(limit.rlim_cur))),
          .advice =
              "raise it with ulimit -v if memory cannot be allocated though it is there: "
              "libraries and the peers' shared memory count too"};
}

}  // namespace lockstep
