// SPDX-License-Identifier: BSD-3-Clause
// Ranks that an MPI launcher started (mpirun, srun), joined by the MPI library that Lockstep was
// built with.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Blocks until all ranks have joined. BackendError if this Lockstep was built without MPI, or if
// this process is no rank of MPI's. Messages are about the backend of this name.
std::shared_ptr<ProcessGroup> make_mpi_group(Membership membership, GroupOptions options,
                                             const std::string& name = "mpi");

}  // namespace lockstep
