// SPDX-License-Identifier: BSD-3-Clause
// Connects to the launcher's Unix socket.
#include "lockstep/rendezvous/local_store.h"

#include "lockstep/core/net/unix_socket.h"

namespace lockstep {

UniqueFd LocalStore::connect(const Deadline& deadline) const {
  return connect_unix(path_, deadline);
}

}  // namespace lockstep
