// SPDX-License-Identifier: BSD-3-Clause
// Whether NCCL is built in and can be loaded.
#include "tools/doctor/probes.h"
#include <fmt/format.h>

#include "lockstep/comm/backends.h"
#include "lockstep/core/error.h"

namespace lockstep {

Finding probe_nccl() {
  const BackendRow& nccl = backend_row("nccl");
  if (!nccl.built_in()) return not_built(nccl);
  try {
    return {.found = fmt::format("built in; NCCL {} can be loaded", nccl.find_library())};
  } catch (const BackendError& error) {
    return {.state = Finding::State::note,
            .found = "built in, but " + first_line(error),
            .advice = "until then use shm or gloo, which take GPUs' tensors through host memory"};
  }
}

}  // namespace lockstep
