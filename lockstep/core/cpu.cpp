// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <sched.h>

namespace lockstep {
namespace {

// The folders of this process's cgroup (version 2), from its own up to the root: a limit anywhere
// on the way binds.
std::vector<std::string> cgroup_folders() {
  std::vector<std::string> folders;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::")) continue;
    for (std::string path = line.substr(3); !path.empty() && path != "/";
         path.erase(path.rfind('/'))) {
      folders.push_back("/sys/fs/cgroup" + path);
    }
  }
  folders.push_back("/sys/fs/cgroup");
  return folders;
}

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

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return {0};
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

std::optional<double> cpu_quota() {
  std::optional<double> quota;
  for (const auto& folder : cgroup_folders()) {
    std::ifstream file(folder + "/cpu.max");
    std::string limit;
    double period = 0;
    if (file >> limit >> period && limit != "max" && period > 0) {
      const double cores = std::stod(limit) / period;
      quota = std::min(quota.value_or(cores), cores);
    }
  }
  return quota;
}

int cut_to_quota(int cores) {
  const double quota = cpu_quota().value_or(cores);
  return std::max(1, quota < cores ? static_cast<int>(std::ceil(quota)) : cores);
}

int available_cores() {
  return cut_to_quota(static_cast<int>(allowed_cores().size()));
}

void pin_to_cores(const std::vector<int>& cores) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int core : cores) CPU_SET(core, &mask);
  sched_setaffinity(0, sizeof mask, &mask);
}

std::optional<std::int64_t> memory_limit() {
  std::optional<std::int64_t> smallest;
  for (const auto& folder : cgroup_folders()) {
    std::int64_t limit = 0;
    if (std::ifstream(folder + "/memory.max") >> limit) {
      smallest = std::min(smallest.value_or(limit), limit);
    }
  }
  return smallest;
}

std::int64_t available_memory() {
  std::int64_t available = machine_memory();
  for (const auto& folder : cgroup_folders()) {
    std::int64_t limit = 0;
    std::int64_t used = 0;
    if (std::ifstream(folder + "/memory.max") >> limit &&
        std::ifstream(folder + "/memory.current") >> used) {
      available = std::min(available, std::max<std::int64_t>(0, limit - used));
    }
  }
  return available;
}

void limit_threads(int threads) {
  const std::string count = std::to_string(threads);
  setenv("OMP_NUM_THREADS", count.c_str(), 1);
  setenv("OPENBLAS_NUM_THREADS", count.c_str(), 1);
  call_if_loaded("omp_set_num_threads", threads);
  call_if_loaded("openblas_set_num_threads", threads);
}

void renew_libtorchs_threads() {
  call_if_loaded("_ZN2at16init_num_threadsEv");  // at::init_num_threads()
}

}  // namespace lockstep
