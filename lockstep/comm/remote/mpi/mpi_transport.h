// SPDX-License-Identifier: BSD-3-Clause
// Moves bytes by MPI's messages. These make progress only while a thread polls MPI.
#pragma once

#include <memory>

#include "lockstep/comm/remote/joining.h"
#include "lockstep/comm/remote/transport.h"
#include "lockstep/core/deadline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Blocks until all ranks have joined. TimeoutError at the deadline, and what joining.check()
// throws; BackendError if MPI has fewer processes than the group has ranks.
std::unique_ptr<remote::Transport> make_mpi_transport(const Membership& membership,
                                                      remote::Joining& joining,
                                                      const Deadline& deadline);

}  // namespace lockstep
