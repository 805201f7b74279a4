// SPDX-License-Identifier: BSD-3-Clause
// A control group in which memory runs out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::testing {

// A new group below this process's own, of version 2 or 1, removed by the destructor when its
// processes have ended.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::int64_t bytes);
  ~MemoryGroup();
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  // False where this machine lets nobody, or not this user, make one with a limit.
  bool usable() const { return usable_; }
  // A shell that writes its number there is in it, with all that it starts.
  std::string members() const { return folder_ / "cgroup.procs"; }

 private:
  std::filesystem::path folder_;
  bool usable_ = false;
};

}  // namespace lockstep::testing
