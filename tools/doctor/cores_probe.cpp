// SPDX-License-Identifier: BSD-3-Clause
// The cores of the machine and of this process, and how many are idle.
#include <chrono>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "lockstep/core/process/cpu.h"
#include "lockstep/core/process/load.h"
#include "tools/doctor/probes.h"

namespace lockstep {

Finding probe_cores() {
  const auto allowed = allowed_cores();
  const auto idle = idle_cores(std::chrono::milliseconds(300));
  Finding finding{.found = fmt::format(
                      "{} in this machine; the affinity mask allows {} ({}); with the quota, {} at "
                      "once{}",
                      ::sysconf(_SC_NPROCESSORS_ONLN), allowed.size(), fmt::join(allowed, ","),
                      available_cores(),
                      idle ? fmt::format("; {:.1f} of {} idle", *idle, allowed.size()) : "")};
  if (idle && *idle < 0.75 * static_cast<double>(allowed.size())) {
    finding.state = Finding::State::note;
    finding.advice =
        "the load exceeds the cores if a job uses all of them: its ranks wait for each other and "
        "for a core, and steps of less than a millisecond take many times as long. Stop other "
        "programs, or start as many ranks as cores are idle";
  }
  return finding;
}

}  // namespace lockstep
