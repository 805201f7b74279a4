// SPDX-License-Identifier: BSD-3-Clause
// The CPU and memory limits of this process's control group, version 1 or 2.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace lockstep {

// Each call reads /proc/self/cgroup and the files under /sys/fs/cgroup. Limits apply from the
// process's own group up to the root; the tightest one counts. nullopt if there is none.
class Cgroup {
 public:
  explicit Cgroup(const std::filesystem::path& root = "/");

  // The quota, in cores.
  std::optional<double> cpu_quota() const;
  // Bytes.
  std::optional<std::int64_t> memory_limit() const;
  // Bytes up to the limit. Cached file pages count as free, since the kernel reclaims them before
  // it refuses an allocation.
  std::optional<std::int64_t> available_memory() const;
  // How often a limit made the kernel look for a process to kill. nullopt in version 1, which does
  // not count this.
  std::optional<std::int64_t> memory_limit_hits() const;
  // How many processes the kernel has killed since the group was made because the group or the
  // machine ran out of memory. Read from the nearest group that counts them; nullopt if none does.
  std::optional<std::int64_t> memory_kills() const;

 private:
  struct MemoryUse;
  std::vector<MemoryUse> memory_uses() const;

  // The folders of the process's own group and of the groups above it, in this order.
  std::vector<std::filesystem::path> cpu_folders_;
  std::vector<std::filesystem::path> memory_folders_;
};

}  // namespace lockstep
