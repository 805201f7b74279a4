// SPDX-License-Identifier: BSD-3-Clause
// Sets glibc's malloc thresholds, and trims its heap on request.
#include "lockstep/core/process/freed_memory.h"

#include <string>

#include <dlfcn.h>
#include <malloc.h>

#include "lockstep/core/environment.h"

namespace lockstep {
namespace {

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
