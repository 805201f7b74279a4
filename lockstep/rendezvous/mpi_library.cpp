// SPDX-License-Identifier: BSD-3-Clause
// Starts and finalizes MPI, and finds out how many threads may use it.
#include "lockstep/rendezvous/mpi_library.h"

#include <array>
#include <cstdlib>
#include <sstream>

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep {

MpiLibrary& MpiLibrary::get() {
  // Never destroyed: groups may live in static objects. MPI itself has one state per process.
  static MpiLibrary& library = *new MpiLibrary;
  return library;
}

bool MpiLibrary::built_in() {
  return true;
}

std::string MpiLibrary::version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
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
  int started = 0;
  int ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  if (ended != 0) {
    throw BackendError("MPI was ended (MPI_Finalize) before a group was made; make it earlier");
  }
  int level = MPI_THREAD_SINGLE;
  if (started == 0) {
    if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS) {
      throw BackendError("MPI cannot be started; see its own messages");
    }
    // MPI_Finalize would block on unfinished operations and on dead ranks. Without it, the launcher
    // sees that this process ended without finalizing, and ends the others. A forked child shares
    // its parent's connections and must not finalize.
    static const pid_t owner = ::getpid();
    ::on_exit(
        [](int status, void*) {
          int ended_already = 0;
          MPI_Finalized(&ended_already);
          const bool well = status == 0 && in_use_ == 0 && ::getpid() == owner;
          if (well && ended_already == 0) MPI_Finalize();
        },
        nullptr);
  } else {
    MPI_Query_thread(&level);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw BackendError(
        "MPI was started for a single thread; start it by MPI_Init_thread with at least "
        "MPI_THREAD_SERIALIZED, or let Lockstep start it");
  }
  locks_itself_ = level == MPI_THREAD_MULTIPLE;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host);
  int on_host = 0;
  MPI_Comm_size(host, &on_host);
  MPI_Comm_free(&host);
  one_host_ = on_host == size_;
  int same = 0;
  const int own = one_host_ ? 1 : 0;
  MPI_Allreduce(&own, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  one_host_ = same != 0;
}

void MpiLibrary::throw_late(const Deadline& deadline) {
  throw TimeoutError(fmt::format(
      "waited {:.1f} s for other ranks, and MPI does not say for which: every rank that "
      "mpirun or srun started must call init_process_group",
      deadline.span().count() / 1000.0));
}

std::string MpiLibrary::broadcast(std::string text) {
  const auto locked = lock();
  int length = static_cast<int>(text.size());
  MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
  text.resize(static_cast<std::size_t>(length));
  MPI_Bcast(text.data(), length, MPI_CHAR, 0, MPI_COMM_WORLD);
  return text;
}

std::unique_lock<std::mutex> MpiLibrary::lock() {
  return locks_itself_ ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
}

}  // namespace lockstep
