// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/peak_memory.h"

#include <fstream>
#include <string>

namespace lockstep {
namespace {

// "Name:   123 kB" in a file of /proc, in bytes.
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
  constexpr auto* status = "/proc/self/status";
  const std::int64_t peak = field(status, "VmHWM");
  if (peak == 0) return 0;
  // The kernel keeps the peak of everything together. Of shared memory, which every rank maps whole
  // and keeps, each has its proportional part.
  return peak - field(status, "RssFile") - field(status, "RssShmem") +
         field("/proc/self/smaps_rollup", "Pss_Shmem");
}

}  // namespace lockstep
