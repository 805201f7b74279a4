// SPDX-License-Identifier: BSD-3-Clause
// Serves a store over TCP, from a thread of its own.
#pragma once

#include "lockstep/core/reception.h"
#include "lockstep/core/service_thread.h"
#include "lockstep/rendezvous/store_server.h"

namespace lockstep {

class TcpStoreServer {
 public:
  // `clients` may connect at once; only who knows the key is answered.
  // Until it is destroyed.
  TcpStoreServer(UniqueFd listener, const Key& key, int clients);

  // See Reception::refused().
  std::string refused() const { return reception_.refused(); }

 private:
  void run(int stop);

  Reception reception_;
  StoreServer answers_;
  ServiceThread thread_;
};

}  // namespace lockstep
