// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/report/probes.h"

namespace lockstep {

Finding backend_not_built(const std::string& backend) {
  return {.topic = "backend " + backend,
          .state = Finding::State::note,
          .found = "not built: this version of Lockstep does not have it",
          .advice = "use shm, which joins the ranks of one machine"};
}

}  // namespace lockstep
