// SPDX-License-Identifier: BSD-3-Clause
// Reads the limits and counters of both cgroup versions from /sys/fs/cgroup.
#include "lockstep/core/process/cgroup.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Version 1 expresses "no limit" as the largest whole number of pages.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 62;

// The names of the same files in versions 2 and 1.
struct MemoryFiles {
  const char* limit;
  const char* used;
  const char* inactive_cache;  // in memory.stat
  const char* active_cache;
  const char* events;  // has "oom_kill"
};
constexpr std::array<MemoryFiles, 2> kMemoryFiles = {
    {{"memory.max", "memory.current", "inactive_file", "active_file", "memory.events"},
     {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file",
      "memory.oom_control"}}};

template <class Value>
std::optional<Value> first_value(const fs::path& file) {
  Value value{};
  if (std::ifstream(file) >> value) return value;
  return std::nullopt;
}

// The value in the line "name value".
std::optional<std::int64_t> named_value(const fs::path& file, std::string_view wanted) {
  std::ifstream lines(file);
  std::string name;
  std::string value;
  while (lines >> name >> value) {
    if (name == wanted) return std::strtoll(value.c_str(), nullptr, 10);
  }
  return std::nullopt;
}

bool contains(const std::string& list, std::string_view wanted) {
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    if (name == wanted) return true;
  }
  return false;
}

// Adds the group's own folder and the folders above it, up to the controller's mount point. In a
// container the path may be the host's, and only its top is visible.
void add_with_ancestors(const fs::path& mount, std::string path, std::vector<fs::path>& folders) {
  for (; !path.empty() && path != "/"; path.erase(path.rfind('/')))
    folders.push_back(mount / path.substr(1));
  folders.push_back(mount);
}

}  // namespace

struct Cgroup::MemoryUse {
  std::int64_t limit;
  std::int64_t used;
  // How often the limit was hit.
  std::optional<std::int64_t> hits;
};

Cgroup::Cgroup(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream file(root / "proc/self/cgroup");
  // Lines are "hierarchy:controllers:path"; version 2 has no controllers there.
  std::string hierarchy;
  std::string controllers;
  std::string path;
  while (std::getline(file, hierarchy, ':') && std::getline(file, controllers, ':') &&
         std::getline(file, path)) {
    if (!path.starts_with('/')) continue;
    if (controllers.empty()) {
      add_with_ancestors(mounts, path, cpu_folders_);
      add_with_ancestors(mounts, path, memory_folders_);
    }
    if (contains(controllers, "cpu")) add_with_ancestors(mounts / "cpu", path, cpu_folders_);
    if (contains(controllers, "memory"))
      add_with_ancestors(mounts / "memory", path, memory_folders_);
  }
}

std::optional<double> Cgroup::cpu_quota() const {
  std::optional<double> tightest;
  for (const auto& folder : cpu_folders_) {
    double limit = 0;  // stays 0 for "max"
    double period = 0;
    if (!(std::ifstream(folder / "cpu.max") >> limit >> period)) {
      limit = first_value<double>(folder / "cpu.cfs_quota_us").value_or(-1);
      period = first_value<double>(folder / "cpu.cfs_period_us").value_or(0);
    }
    if (limit <= 0 || period <= 0) continue;
    tightest = std::min(tightest.value_or(limit / period), limit / period);
  }
  return tightest;
}

std::vector<Cgroup::MemoryUse> Cgroup::memory_uses() const {
  std::vector<MemoryUse> uses;
  for (const auto& folder : memory_folders_) {
    for (const MemoryFiles& files : kMemoryFiles) {
      const auto limit = first_value<std::int64_t>(folder / files.limit);
      if (!limit || *limit < 0 || *limit >= kNoLimit) continue;
      const auto stat = folder / "memory.stat";
      const auto used = first_value<std::int64_t>(folder / files.used).value_or(0);
      uses.push_back({.limit = *limit,
                      .used = used - named_value(stat, files.inactive_cache).value_or(0) -
                              named_value(stat, files.active_cache).value_or(0),
                      .hits = named_value(folder / "memory.events", "oom")});
    }
  }
  return uses;
}

std::optional<std::int64_t> Cgroup::memory_limit() const {
  std::optional<std::int64_t> tightest;
  for (const auto& use : memory_uses()) {
    tightest = std::min(tightest.value_or(use.limit), use.limit);
  }
  return tightest;
}

std::optional<std::int64_t> Cgroup::available_memory() const {
  std::optional<std::int64_t> least;
  for (const auto& use : memory_uses()) {
    const std::int64_t left = std::clamp<std::int64_t>(use.limit - use.used, 0, use.limit);
    least = std::min(least.value_or(left), left);
  }
  return least;
}

std::optional<std::int64_t> Cgroup::memory_limit_hits() const {
  std::optional<std::int64_t> sum;
  for (const auto& use : memory_uses()) {
    if (use.hits) sum = sum.value_or(0) + *use.hits;
  }
  return sum;
}

std::optional<std::int64_t> Cgroup::memory_kills() const {
  for (const auto& folder : memory_folders_) {
    for (const MemoryFiles& files : kMemoryFiles) {
      if (const auto kills = named_value(folder / files.events, "oom_kill")) return kills;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
