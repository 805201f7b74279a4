// SPDX-License-Identifier: BSD-3-Clause
// In the place of mpi_group.cpp where there is no MPI.
#include "lockstep/comm/remote/mpi/mpi_group.h"
#include "lockstep/core/error.h"

namespace lockstep {

std::shared_ptr<ProcessGroup> make_mpi_group(Membership, GroupOptions,
                                             const std::string& /*name*/) {
  throw BackendError(
      "backend \"mpi\" is not built into this Lockstep: it needs an MPI (Debian: apt-get install "
      "libopenmpi-dev openmpi-bin, or libmpich-dev mpich) when Lockstep is configured");
}

}  // namespace lockstep
