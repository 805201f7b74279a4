// SPDX-License-Identifier: BSD-3-Clause
// The rendezvous of ranks that mpirun started without an address.
#pragma once

#include <string_view>

#include "lockstep/rendezvous/membership.h"
#include "lockstep/rendezvous/tcp_store.h"

namespace lockstep {

inline constexpr std::string_view kHowToGetMpi =
    "it needs an MPI (Debian: apt-get install libopenmpi-dev openmpi-bin, or libmpich-dev mpich) "
    "when Lockstep is configured";

// Sets the member's store and address: MPI broadcasts where rank 0 listens. Collective, blocking;
// TimeoutError after the store's timeout. Defined only if MPI is built in.
void rendezvous_by_mpi(Membership& member, TcpStoreOptions store_options);

}  // namespace lockstep
