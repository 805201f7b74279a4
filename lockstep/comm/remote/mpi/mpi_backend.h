// SPDX-License-Identifier: BSD-3-Clause
// The backend of ranks that an MPI launcher started (mpirun, srun), joined by the MPI library that
// Lockstep was built with.
#pragma once

#include <memory>
#include <string>

#include "lockstep/comm/core/backend.h"

namespace lockstep {

// Blocks until all ranks have joined. BackendError if this process is not a rank of MPI. Messages
// call the backend `name`.
std::shared_ptr<Backend> make_mpi_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& name);

}  // namespace lockstep
