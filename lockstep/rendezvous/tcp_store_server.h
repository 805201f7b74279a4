// SPDX-License-Identifier: BSD-3-Clause
// Serves a store over TCP, from a thread of its own.
#pragma once

#include "lockstep/core/authenticating_acceptor.h"
#include "lockstep/core/service_thread.h"
#include "lockstep/rendezvous/store_server.h"

namespace lockstep {

class TcpStoreServer {
 public:
  // `clients` may connect at once; only who knows the key is answered.
  // Until it is destroyed.
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
