// SPDX-License-Identifier: BSD-3-Clause
// Claims a core by listening on an abstract Unix socket that is named after it.
#include "lockstep/core/process/core_claim.h"

#include <fmt/format.h>

#include "lockstep/core/net/unix_socket.h"

namespace lockstep {

CoreClaim::CoreClaim(const std::vector<int>& cores) {
  try {
    for (int core : cores) {
      sockets_.push_back(listen_unix(fmt::format("@lockstep-core-{}", core)));
    }
  } catch (const BackendError&) {
    sockets_.clear();
  }
}

}  // namespace lockstep
