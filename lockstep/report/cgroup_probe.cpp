// SPDX-License-Identifier: BSD-3-Clause
#include <fstream>
#include <sstream>
#include <string>

#include <fmt/format.h>

#include "lockstep/core/cpu.h"
#include "lockstep/report/bytes.h"
#include "lockstep/report/probes.h"

namespace lockstep {
namespace {

// Lines are "hierarchy:controllers:path"; version 2 has no controllers there.
bool has_version_1_limits() {
  std::ifstream file("/proc/self/cgroup");
  std::string hierarchy, controllers, path;
  while (std::getline(file, hierarchy, ':') && std::getline(file, controllers, ':') &&
         std::getline(file, path)) {
    std::istringstream list(controllers);
    for (std::string name; std::getline(list, name, ',');) {
      if (name == "cpu" || name == "memory") return true;
    }
  }
  return false;
}

}  // namespace

Finding probe_cgroup() {
  if (has_version_1_limits()) {
    return {.state = Finding::State::note,
            .found = "of version 1, whose limits Lockstep does not see",
            .advice = "if this job has a CPU quota, give --ranks and --threads that fit it"};
  }
  const auto quota = cpu_quota();
  const auto memory = memory_limit();
  return {.found = fmt::format("CPU quota: {}; memory limit: {}",
                               quota ? fmt::format("{:.2f} cores", *quota) : "none",
                               memory ? in_bytes(*memory) : "none")};
}

}  // namespace lockstep
