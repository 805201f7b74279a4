// SPDX-License-Identifier: BSD-3-Clause
// Asks the kernel and the control group about memory, and sets up and trims glibc's heap.
#include "lockstep/core/process/memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <dlfcn.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/core/process/cgroup.h"

namespace lockstep {
namespace {

// The line "Name: 123 kB" of a file in /proc, in bytes; nullopt if there is none.
std::optional<std::int64_t> field(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return std::nullopt;
}

// Bytes at the heap's end that may stay unused.
constexpr int kTrimThreshold = 256 << 20;
// Larger blocks come from the system and return to it at once. This is the most that glibc allows.
constexpr int kMmapThreshold = 32 << 20;

constexpr const char* kTrim = "MALLOC_TRIM_THRESHOLD_";
constexpr const char* kMmap = "MALLOC_MMAP_THRESHOLD_";

#if defined(__GLIBC__)
// Another allocator, such as a sanitizer's, may replace glibc's. Then glibc's heap is not
// initialized, and several threads that used it would initialize it at the same time.
bool glibc_allocates() {
  return dlsym(RTLD_DEFAULT, "malloc") == dlsym(RTLD_DEFAULT, "__libc_malloc");
}
#endif

}  // namespace

std::int64_t available_memory(int processes) {
  const std::int64_t machine =
      field("/proc/meminfo", "MemAvailable").value_or(std::numeric_limits<std::int64_t>::max());
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

void reset_peak_memory() {
  // Resets VmHWM; see proc(5).
  std::ofstream("/proc/self/clear_refs") << "5";
}

std::int64_t peak_memory() {
  constexpr auto* kStatus = "/proc/self/status";
  const auto peak = field(kStatus, "VmHWM");
  if (!peak) return 0;
  // The kernel keeps only the peak of the total. Every rank maps shared memory whole and keeps it,
  // so a proportional part is counted for each.
  return *peak - field(kStatus, "RssFile").value_or(0) - field(kStatus, "RssShmem").value_or(0) +
         field("/proc/self/smaps_rollup", "Pss_Shmem").value_or(0);
}

EnvironmentVariables keep_freed_memory_environment() {
  return {{kTrim, std::to_string(kTrimThreshold)}, {kMmap, std::to_string(kMmapThreshold)}};
}

void keep_freed_memory() {
#if defined(__GLIBC__)
  if (!glibc_allocates()) return;
  if (environment("GLIBC_TUNABLES").value_or("").find("glibc.malloc") != std::string::npos) return;
  if (!environment(kTrim)) ::mallopt(M_TRIM_THRESHOLD, kTrimThreshold);
  if (!environment(kMmap)) ::mallopt(M_MMAP_THRESHOLD, kMmapThreshold);
#endif
}

void give_back_freed_memory() {
#if defined(__GLIBC__)
  if (glibc_allocates()) ::malloc_trim(0);
#endif
}

}  // namespace lockstep
