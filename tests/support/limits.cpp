// SPDX-License-Identifier: BSD-3-Clause
// Limits this process by rlimits, mounts and seccomp filters.
#include "support/limits.h"

#include <array>
#include <cstddef>
#include <fstream>
#include <string>

#include <fmt/format.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
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

// What is mounted is not to be seen outside of the calling process.
bool mount_tmpfs(const std::filesystem::path& folder, std::int64_t bytes, unsigned long flags = 0) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  const std::string size = fmt::format("size={}", bytes);
  return ::mount("none", folder.c_str(), "tmpfs", flags, size.c_str()) == 0;
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
  return mount_tmpfs(folder, 4096);
}

bool limit_dev_shm(std::int64_t bytes) {
  return mount_tmpfs("/dev/shm", bytes == 0 ? 4096 : bytes, bytes == 0 ? MS_RDONLY : 0);
}

bool mount_disk(const std::filesystem::path& folder, std::int64_t bytes) {
  return mount_tmpfs(folder, bytes);
}

bool fail_call(long number, int error) {
  std::array<sock_filter, 4> program{
      {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<std::uint32_t>(number), 0, 1),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error)),
       BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog filter{program.size(), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace lockstep::testing
