// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/remote/mpi/mpi_group.h"

#include "lockstep/comm/remote/mpi/mpi_transport.h"
#include "lockstep/comm/remote/remote_group.h"

namespace lockstep {

std::shared_ptr<ProcessGroup> make_mpi_group(Membership membership, GroupOptions options,
                                             const std::string& name) {
  return remote::make_remote_group(
      name, std::move(membership), options,
      [](const Membership& member, remote::Joining& joining, const Deadline& deadline) {
        return make_mpi_transport(member, joining, deadline);
      });
}

}  // namespace lockstep
