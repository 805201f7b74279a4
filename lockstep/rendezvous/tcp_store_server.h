// SPDX-License-Identifier: BSD-3-Clause
// Serves a store over TCP from its own thread.
#pragma once

#include "lockstep/core/net/authenticating_acceptor.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/rendezvous/store_server.h"

namespace lockstep {

class TcpStoreServer {
 public:
  // Serves until it is destroyed. Has room for `clients` clients at once, and answers only those
  // that know the key.
  TcpStoreServer(UniqueFd listener, const Key& key, int clients);

  // See AuthenticatingAcceptor::refused().
  std::string refused() const { return acceptor_.refused(); }

 private:
  void run(int stop);

  AuthenticatingAcceptor acceptor_;
  StoreServer answers_;
  ServiceThread thread_;
};

}  // namespace lockstep
