// SPDX-License-Identifier: BSD-3-Clause
// Joins ranks over MPI.
#include "lockstep/comm/remote/mpi/mpi_backend.h"

#include "lockstep/comm/remote/mpi/mpi_transport.h"
#include "lockstep/comm/remote/remote_backend.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep {

std::shared_ptr<Backend> make_mpi_backend(const Membership& membership, const GroupOptions& options,
                                          const std::string& name) {
  return remote::make_remote_backend(
      name, membership, options,
      {.check = [](const Membership&, const std::string&) { MpiLibrary::load(); },
       .join = make_mpi_transport});
}

}  // namespace lockstep
