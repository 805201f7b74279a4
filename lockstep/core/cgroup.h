// SPDX-License-Identifier: BSD-3-Clause
// What the control group of this process, of version 2 or 1, leaves it of the machine.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace lockstep {

// Reads /proc/self/cgroup and the files under /sys/fs/cgroup when it is asked. A limit anywhere on
// the way from the process's own group up binds; the tightest one counts. Nothing where there is
// none.
class Cgroup {
 public:
  explicit Cgroup(const std::filesystem::path& root = "/");

  // How many cores' time the quota is worth.
  std::optional<double> cpu_quota() const;
  // In bytes.
  std::optional<std::int64_t> memory_limit() const;
  // Bytes up to the limit. Cached pages of files count as free: the kernel gives them back before
  // it refuses anything.
  std::optional<std::int64_t> available_memory() const;
  // How often a process was to be killed because a limit was met; nothing in version 1, which does
  // not count it.
  std::optional<std::int64_t> memory_limit_hits() const;
  // How many processes the kernel has killed for lack of memory, be it the group's or the
  // machine's, since the group was made. The count is that of the nearest group that has one;
  // nothing if none has.
  std::optional<std::int64_t> memory_kills() const;

 private:
  struct MemoryUse;
  std::vector<MemoryUse> memory_uses() const;

  // From the process's own group up.
  std::vector<std::filesystem::path> cpu_folders_;
  std::vector<std::filesystem::path> memory_folders_;
};

}  // namespace lockstep
