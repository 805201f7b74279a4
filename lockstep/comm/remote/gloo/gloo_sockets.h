// SPDX-License-Identifier: BSD-3-Clause
// Gives Gloo connections that Lockstep has made (network/connections.h). Gloo makes its own without
// asking who connects, ends the process if a stranger does so at the wrong moment, and cannot be
// woken when a rank dies meanwhile. So each rank first has its Gloo connect to this same process,
// which is quick and needs no other rank, and then replaces these stand-ins by the real connections
// (docs/decisions/0019-gloo-gets-its-connections.md).
#pragma once

#include <netinet/in.h>

#include "lockstep/comm/remote/connections.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Where Gloo connects at first: an address for each connection to each rank.
struct StandIns {
  in_port_t port = 0;  // in network order
  sockaddr_in address(int connection, int rank) const;
};

class GlooSockets {
 public:
  // Listens on loopback. BackendError if that fails.
  GlooSockets();

  StandIns stand_ins() const { return stand_ins_; }

  // Puts each connection in the place of its stand-in. Call it when Gloo has connected to all
  // stand-ins and does nothing. BackendError if one cannot be found.
  void replace(remote::Connections connections);

 private:
  UniqueFd listener_;
  StandIns stand_ins_;
};

}  // namespace lockstep
