// SPDX-License-Identifier: BSD-3-Clause
// The store that rank 0 serves over TCP to all ranks of a job. Both ends first prove that they know
// the job's secret, if it has one.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep {

struct TcpStoreOptions {
  // A name or address of rank 0's machine. Rank 0 listens on that address only.
  std::string host;
  // 0 makes rank 0 take a free port.
  std::uint16_t port = 0;
  std::string secret;
  int rank = 0;
  int world_size = 1;
  // Limits the wait for rank 0 to appear, and for each of its replies.
  std::chrono::milliseconds timeout;
};

// Rank 0's end. Serves from its own thread until it is destroyed. BackendError if the port cannot
// be used, AddressInUse if it is taken.
struct ServedStore {
  std::shared_ptr<Store> store;
  std::uint16_t port;
};
ServedStore serve_tcp_store(const TcpStoreOptions& options);
// The same behind a socket that listens already, at options.host.
ServedStore serve_tcp_store(UniqueFd listener, const TcpStoreOptions& options);

// The other ranks' end. Returns when rank 0 serves the store; TimeoutError if it does not in time,
// BackendError if it does not know the secret or something else listens there.
std::shared_ptr<Store> join_tcp_store(const TcpStoreOptions& options);
// The same without waiting: for a store that is served already.
std::shared_ptr<Store> make_tcp_store_client(const TcpStoreOptions& options);

}  // namespace lockstep
