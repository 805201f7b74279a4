// SPDX-License-Identifier: BSD-3-Clause
// Asks the kernel, the cgroup and loaded thread libraries about cores, memory and threads.
#include "lockstep/core/process/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/core/process/cgroup.h"

namespace lockstep {
namespace {

std::int64_t machine_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string name; file >> name;) {
    std::int64_t kibibytes = 0;
    file >> kibibytes;
    if (name == "MemAvailable:") return kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<std::int64_t>::max();
}

template <class... Arguments>
void call_if_loaded(const char* function, Arguments... arguments) {
  if (auto* address = dlsym(RTLD_DEFAULT, function)) {
    reinterpret_cast<void (*)(Arguments...)>(address)(arguments...);
  }
}

}  // namespace

std::vector<int> allowed_cores(pid_t process) {
  std::vector<int> cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(process, sizeof mask, &mask) != 0) {
    return process == 0 ? std::vector{0} : std::vector<int>();
  }
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

int cut_to_quota(int cores) {
  const double quota = Cgroup().cpu_quota().value_or(cores);
  return std::max(1, quota < cores ? static_cast<int>(std::ceil(quota)) : cores);
}

int available_cores() {
  return cut_to_quota(static_cast<int>(allowed_cores().size()));
}

void pin_to_cores(const std::vector<int>& cores, pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int core : cores) CPU_SET(core, &mask);
  sched_setaffinity(thread, sizeof mask, &mask);
}

std::int64_t available_memory(int processes) {
  const std::int64_t machine = machine_memory();
  const std::int64_t all = std::min(machine, Cgroup().available_memory().value_or(machine));
  return std::min(all / processes, address_space_left().value_or(all));
}

std::optional<std::int64_t> address_space_left() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return {};
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto used = pages * ::sysconf(_SC_PAGESIZE);
  return std::max<std::int64_t>(0, static_cast<std::int64_t>(limit.rlim_cur) - used);
}

std::string oversubscription(int ranks, int cores) {
  if (ranks <= cores) return "";
  return fmt::format(
      "{} ranks share {} core{} and take turns, which slows them down; start at most {} on this "
      "machine (`lockstep doctor` shows what limits its cores)",
      ranks, cores, cores == 1 ? "" : "s", cores);
}

void limit_threads(int threads) {
  const std::string count = std::to_string(threads);
  setenv("OMP_NUM_THREADS", count.c_str(), 1);
  setenv("OPENBLAS_NUM_THREADS", count.c_str(), 1);
  limit_loaded_threads(threads);
}

void limit_loaded_threads(int threads) {
  call_if_loaded("omp_set_num_threads", threads);
  call_if_loaded("openblas_set_num_threads", threads);
}

void renew_libtorchs_threads() {
  call_if_loaded("_ZN2at16init_num_threadsEv");  // at::init_num_threads()
}

}  // namespace lockstep
