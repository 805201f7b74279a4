// SPDX-License-Identifier: BSD-3-Clause
// The cores of the machine and of this process.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "lockstep/core/cpu.h"
#include "tools/doctor/probes.h"

namespace lockstep {

Finding probe_cores() {
  const auto allowed = allowed_cores();
  return {.found = fmt::format(
              "{} in this machine; the affinity mask allows {} ({}); with the quota, {} at once",
              ::sysconf(_SC_NPROCESSORS_ONLN), allowed.size(), fmt::join(allowed, ","),
              available_cores())};
}

}  // namespace lockstep
