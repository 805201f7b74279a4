// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/mpi/mpi_group.h"

#include "lockstep/collective/mpi/mpi_carrier.h"
#include "lockstep/collective/network/network_group.h"

namespace lockstep {

std::shared_ptr<ProcessGroup> make_mpi_group(Membership membership, GroupOptions options,
                                             const std::string& name) {
  return network::make_network_group(
      name, std::move(membership), options,
      [](const Membership& member, network::Joining& joining, const Deadline& deadline) {
        return make_mpi_carrier(member, joining, deadline);
      });
}

}  // namespace lockstep
