// SPDX-License-Identifier: BSD-3-Clause
// The control group's limits.
#include <fmt/format.h>

#include "lockstep/core/process/cgroup.h"
#include "tools/doctor/bytes.h"
#include "tools/doctor/probes.h"

namespace lockstep {

Finding probe_cgroup() {
  const Cgroup cgroup;
  const auto quota = cgroup.cpu_quota();
  const auto memory = cgroup.memory_limit();
  return {.found = fmt::format("CPU quota: {}; memory limit: {}",
                               quota ? fmt::format("{:.2f} cores", *quota) : "none",
                               memory ? in_bytes(*memory) : "none")};
}

}  // namespace lockstep
