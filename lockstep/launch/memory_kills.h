// SPDX-License-Identifier: BSD-3-Clause
// Tells the kernel's out-of-memory killer from everybody else who sends SIGKILL.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/core/cgroup.h"

namespace lockstep {

// Compares the count of such kills in this process's control group with the count at construction.
// Ranks that move to a group outside it are not counted.
class MemoryKills {
 public:
  // Counts from now on. Reads the files of control groups below `root`.
  explicit MemoryKills(const std::filesystem::path& root = "/");

  // What ended a process that SIGKILL ended just now: "killed by the kernel: out of memory, the
  // control group's limit is 512 MiB", or that it was somebody else, or both guesses where no
  // control group counts.
  std::string words() const;
  // For a process whose end is not known: "killed by the kernel: ...", or empty if the kernel has
  // killed none since, or no control group counts.
  std::string words_since() const;

 private:
  Cgroup cgroup_;
  std::optional<std::int64_t> before_;
};

}  // namespace lockstep
