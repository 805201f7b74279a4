// SPDX-License-Identifier: BSD-3-Clause
// The store that rank 0 serves over TCP to the ranks of one job, on all its machines. Both ends
// show each other that they know the job's secret, if it has one, before they say anything else.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/rendezvous/store.h"

namespace lockstep {

struct TcpStoreOptions {
  // A name or address of rank 0's machine. It listens on that alone.
  std::string host;
  // 0 has rank 0 take one that is free.
  std::uint16_t port = 0;
  std::string secret;
  int rank = 0;
  int world_size = 1;
  // For rank 0 to be there, and for it to answer.
  std::chrono::milliseconds timeout;
};

// Rank 0's end, which serves from a thread of its own until it is destroyed. BackendError if the
// port cannot be used, AddressInUse if another has it.
struct ServedStore {
  std::shared_ptr<Store> store;
  std::uint16_t port;
};
ServedStore serve_tcp_store(const TcpStoreOptions& options);

// The end of the others. Returns when rank 0 is there; TimeoutError if it does not come in time,
// BackendError if it does not know the secret, or something else listens there.
std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options);

}  // namespace lockstep
