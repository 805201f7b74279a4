// SPDX-License-Identifier: BSD-3-Clause
// Gives Gloo connections that Lockstep has made (remote/connections.h). When Gloo makes its own, it
// does not authenticate peers, ends the process if an unknown peer connects at the wrong moment,
// and cannot be woken when a rank dies meanwhile. So each rank first has its Gloo connect to its
// own process, whose addresses the store here gives it. That is quick and needs no other rank. Then
// the rank replaces these stand-ins with the real connections
// (docs/decisions/0019-gloo-gets-its-connections.md).
#pragma once

#include <netinet/in.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/remote/connections.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::gloo {

// The broadcast address of loopback, at which Gloo's device listens. A socket may listen there, but
// TCP cannot connect to it. It is also the highest address of loopback, and in Gloo the end with
// the higher address connects.
inline constexpr const char* kGlooHost = "127.255.255.255";

// Where Gloo connects at first: one address for each connection to each rank.
struct StandIns {
  in_port_t port = 0;  // in network order
  sockaddr_in address(int connection, int rank) const;
};

// Answers at once that each rank listens at its stand-in, without asking any other rank.
c10::intrusive_ptr<c10d::Store> make_store(StandIns stand_ins);

class GlooSockets {
 public:
  // Listens on loopback. BackendError if that fails.
  GlooSockets();

  StandIns stand_ins() const { return stand_ins_; }

  // Puts each connection in the place of its stand-in. Call it when Gloo has connected to all
  // stand-ins and is idle. BackendError if a stand-in cannot be found.
  void replace(remote::Connections connections);

 private:
  UniqueFd listener_;
  StandIns stand_ins_;
};

}  // namespace lockstep::gloo
