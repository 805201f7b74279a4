// SPDX-License-Identifier: BSD-3-Clause
// Computes the peak from VmHWM, minus file mappings and the other ranks' part of shared memory.
#include "lockstep/core/process/peak_memory.h"

#include <fstream>
#include <string>

namespace lockstep {
namespace {

// The line "Name: 123 kB" of a file in /proc, in bytes.
std::int64_t field(const char* file, const std::string& name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace

void reset_peak_memory() {
  // Resets VmHWM; see proc(5).
  std::ofstream("/proc/self/clear_refs") << "5";
}

std::int64_t peak_memory() {
  constexpr auto* kStatus = "/proc/self/status";
  const std::int64_t peak = field(kStatus, "VmHWM");
  if (peak == 0) return 0;
  // The kernel keeps only the peak of the total. Every rank maps shared memory whole and keeps it,
  // so a proportional part is counted for each.
  return peak - field(kStatus, "RssFile") - field(kStatus, "RssShmem") +
         field("/proc/self/smaps_rollup", "Pss_Shmem");
}

}  // namespace lockstep
