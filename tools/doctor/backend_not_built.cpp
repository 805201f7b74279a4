// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/probes.h"
#include <fmt/format.h>

namespace lockstep {

Finding backend_not_built(const std::string& backend, const std::string& packages) {
  return {.state = Finding::State::note,
          .found = "not built",
          .advice = fmt::format("to have it, install Debian's {}, then configure and build "
                                "Lockstep again; without {} use shm, for the ranks of one machine",
                                packages, backend)};
}

}  // namespace lockstep
