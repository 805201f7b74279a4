// SPDX-License-Identifier: BSD-3-Clause
// The finding for a backend that is not built in.
#include "tools/doctor/probes.h"
#include <fmt/format.h>

namespace lockstep {

Finding not_built(const BackendRow& row) {
  return {.state = Finding::State::note,
          .found = "not built",
          .advice = fmt::format(
              "{}; until then use shm, for the ranks of one machine (GPUs' tensors pass through "
              "host memory)",
              row.how_to_get)};
}

}  // namespace lockstep
