// SPDX-License-Identifier: BSD-3-Clause
#include "support/limits.h"

#include <fstream>
#include <string>

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

namespace lockstep::testing {

bool limit_memory(std::int64_t more_bytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return more_bytes < 0;
#else
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = static_cast<rlim_t>(pages * ::sysconf(_SC_PAGESIZE) + more_bytes);
  return ::setrlimit(RLIMIT_AS, &limit) == 0;
#endif
}

namespace {

// What is mounted from now on is not to be seen outside.
bool enter_mount_namespace() {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

}  // namespace

rlimit leave_no_descriptor(int more) {
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const int next = ::dup(STDERR_FILENO);
  ::close(next);
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(next + more);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return before;
}

bool hide_folder(const char* folder) {
  return enter_mount_namespace() && ::mount("none", folder, "tmpfs", 0, "size=4096") == 0;
}

bool limit_dev_shm(std::int64_t bytes) {
  if (!enter_mount_namespace()) return false;
  const std::string size = fmt::format("size={}", bytes == 0 ? 4096 : bytes);
  return ::mount("none", "/dev/shm", "tmpfs", bytes == 0 ? MS_RDONLY : 0, size.c_str()) == 0;
}

}  // namespace lockstep::testing
