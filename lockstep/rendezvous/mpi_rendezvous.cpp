// SPDX-License-Identifier: BSD-3-Clause
// Rank 0 serves a store, and MPI tells the other ranks where.
#include "lockstep/rendezvous/mpi_rendezvous.h"

#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep {

void rendezvous_by_mpi(Membership& member, TcpStoreOptions store_options) {
  const Deadline deadline = Deadline::after(store_options.timeout);
  MpiLibrary& mpi = *MpiLibrary::in_time(deadline, [] { return &MpiLibrary::get(); });
  if (mpi.size() != member.world_size || mpi.rank() != member.rank) {
    throw UsageError(
        fmt::format("mpirun calls this rank {} of {}, but MPI says {} of {}: was it started by "
                    "another MPI than the one that this process loaded ({})?",
                    member.rank, member.world_size, mpi.rank(), mpi.size(), MpiLibrary::version()));
  }
  std::exception_ptr error;
  std::string answer;
  if (member.rank == 0) {
    try {
      store_options.host = mpi.one_host() ? "127.0.0.1" : reachable_host(host_name(), deadline);
      auto [store, port] = serve_tcp_store(store_options);
      member.store = std::move(store);
      answer = fmt::format("{} {}", store_options.host, port);
    } catch (const Error&) {
      error = std::current_exception();  // the others wait for the broadcast
    }
  }
  std::istringstream stream(
      MpiLibrary::in_time(deadline, [&mpi, answer] { return mpi.broadcast(answer); }));
  if (error) std::rethrow_exception(error);
  if (!(stream >> store_options.host >> store_options.port)) {
    throw BackendError(
        "rank 0 could not serve the store for the rendezvous; its own error says why");
  }
  member.address = store_options.host;
  if (member.rank != 0) member.store = join_tcp_store(store_options);
}

}  // namespace lockstep
