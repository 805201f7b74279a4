// SPDX-License-Identifier: BSD-3-Clause
// Makes a control group with a memory limit, of version 2 or 1.
#include "support/memory_group.h"

#include <fstream>

#include "support/process_table.h"
#include <unistd.h>

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

bool write(const fs::path& file, const std::string& text) {
  std::ofstream stream(file);
  stream << text << std::flush;
  return stream.good();
}

// Where this process's memory is accounted.
fs::path own_folder() {
  std::ifstream file("/proc/self/cgroup");
  fs::path version2;
  for (std::string line; std::getline(file, line);) {
    const std::string version1 = ":memory:";
    if (const auto at = line.find(version1); at != std::string::npos) {
      return "/sys/fs/cgroup/memory" + line.substr(at + version1.size());
    }
    if (line.starts_with("0::")) version2 = "/sys/fs/cgroup" + line.substr(3);
  }
  return version2;
}

}  // namespace

MemoryGroup::MemoryGroup(std::int64_t bytes)
    : folder_(own_folder() / ("lockstep-test-" + std::to_string(::getpid()))) {
  std::error_code error;
  if (!fs::create_directory(folder_, error)) return;
  const std::string limit = std::to_string(bytes);
  usable_ = write(folder_ / "memory.max", limit) || write(folder_ / "memory.limit_in_bytes", limit);
  // Where there is swap, it must not help out.
  if (!write(folder_ / "memory.swap.max", "0"))
    write(folder_ / "memory.memsw.limit_in_bytes", limit);
}

MemoryGroup::~MemoryGroup() {
  eventually([&] { return ::rmdir(folder_.c_str()) == 0 || !fs::exists(folder_); });
}

}  // namespace lockstep::testing
