// SPDX-License-Identifier: BSD-3-Clause
#include "tools/doctor/probes.h"
#include <fmt/format.h>

#include "lockstep/comm/nccl/nccl_group.h"
#include "lockstep/core/error.h"

namespace lockstep {

Finding probe_nccl() {
  if (!nccl_built_in()) {
    return {.state = Finding::State::note,
            .found = "not built",
            .advice =
                "to have it, use a libtorch with CUDA, and have nccl.h and cuda_runtime.h where "
                "CMake finds them (beside pip's torch they are found); without nccl use shm or "
                "gloo, which take GPUs' tensors through host memory"};
  }
  try {
    return {.found = fmt::format("built in; NCCL {} can be loaded", nccl_version())};
  } catch (const BackendError& error) {
    return {.state = Finding::State::note,
            .found = "built in, but " + first_line(error),
            .advice = "until then use shm or gloo, which take GPUs' tensors through host memory"};
  }
}

}  // namespace lockstep
