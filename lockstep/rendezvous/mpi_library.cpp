// SPDX-License-Identifier: BSD-3-Clause
// Starts and finalizes MPI, finds out whether several threads may use it, and tells ranks where
// rank 0 serves its store.
#include "lockstep/rendezvous/mpi_library.h"

#include <array>
#include <cstdlib>
#include <exception>
#include <sstream>

#include <fmt/format.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/mpi_functions.h"

namespace lockstep {

MpiLibrary& MpiLibrary::get() {
  // Never destroyed: groups may live in static objects. MPI itself has one state per process.
  static MpiLibrary& library = *new MpiLibrary;
  return library;
}

void MpiLibrary::load() {
  MpiFunctions::get();
}

std::string MpiLibrary::version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MpiFunctions::get().get_library_version(text.data(), &length);
  const std::string all(text.data(), static_cast<std::size_t>(length));
  // MPICH appends its whole configuration, Open MPI its packager.
  std::istringstream words(all.substr(0, all.find_first_of(",\n")));
  std::string version;
  for (std::string word; words >> word;) {
    if (word != "Version:") version += (version.empty() ? "" : " ") + word;
  }
  return version;
}

MpiLibrary::MpiLibrary() {
  const MpiFunctions& mpi = MpiFunctions::get();
  int started = 0;
  int ended = 0;
  mpi.initialized(&started);
  mpi.finalized(&ended);
  if (ended != 0) {
    throw BackendError("MPI was ended (MPI_Finalize) before a group was made; make it earlier");
  }
  int level = MPI_THREAD_SINGLE;
  if (started == 0) {
    if (mpi.init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
      throw BackendError("MPI cannot be started; see its own messages");
    }
    // MPI_Finalize would block on unfinished operations and on dead ranks. Without it, the launcher
    // sees that this process ended without finalizing, and ends the others. A forked child shares
    // its parent's connections and must not finalize.
    static const pid_t owner = ::getpid();
    ::on_exit(
        [](int status, void*) {
          const MpiFunctions& mpi = MpiFunctions::get();
          int ended_already = 0;
          mpi.finalized(&ended_already);
          const bool well = status == 0 && in_use_ == 0 && ::getpid() == owner;
          if (well && ended_already == 0) mpi.finalize();
        },
        nullptr);
  } else {
    mpi.query_thread(&level);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw BackendError(
        "MPI was started for a single thread; start it by MPI_Init_thread with at least "
        "MPI_THREAD_SERIALIZED, or let Lockstep start it");
  }
  locks_itself_ = level == MPI_THREAD_MULTIPLE;
  mpi.comm_rank(mpi.comm_world, &rank_);
  mpi.comm_size(mpi.comm_world, &size_);
  MPI_Comm host{};
  mpi.comm_split_type(mpi.comm_world, MPI_COMM_TYPE_SHARED, rank_, mpi.info_null, &host);
  int on_host = 0;
  mpi.comm_size(host, &on_host);
  mpi.comm_free(&host);
  one_host_ = on_host == size_;
  int same = 0;
  const int own = one_host_ ? 1 : 0;
  mpi.allreduce(&own, &same, 1, mpi.int_type, mpi.min_op, mpi.comm_world);
  one_host_ = same != 0;
}

void MpiLibrary::throw_late(const Deadline& deadline) {
  throw TimeoutError(fmt::format(
      "waited {:.1f} s for other ranks, and MPI does not say for which: every rank that "
      "mpirun or srun started must call init_process_group",
      deadline.span().count() / 1000.0));
}

std::string MpiLibrary::broadcast(std::string text) {
  const MpiFunctions& mpi = MpiFunctions::get();
  const auto locked = lock();
  int length = static_cast<int>(text.size());
  mpi.bcast(&length, 1, mpi.int_type, 0, mpi.comm_world);
  text.resize(static_cast<std::size_t>(length));
  mpi.bcast(text.data(), length, mpi.char_type, 0, mpi.comm_world);
  return text;
}

std::unique_lock<std::mutex> MpiLibrary::lock() {
  return locks_itself_ ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
}

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
