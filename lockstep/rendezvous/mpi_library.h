// SPDX-License-Identifier: BSD-3-Clause
// MPI in this process: the library, which is started on first use and finalized at the end of the
// process unless an operation is unfinished, and the rendezvous of ranks that mpirun started. The
// functions are defined only if MPI is built in (built_with.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/rendezvous/membership.h"
#include "lockstep/rendezvous/tcp_store.h"

namespace lockstep {

inline constexpr std::string_view kHowToGetMpi =
    "it needs an MPI (Debian: apt-get install libopenmpi-dev openmpi-bin, or libmpich-dev mpich) "
    "when Lockstep is configured";

class MpiLibrary {
 public:
  // Loads MPI, and starts it unless the program has done so. BackendError as from load(), if MPI is
  // finalized already, or if the program started it below MPI_THREAD_SERIALIZED.
  static MpiLibrary& get();

  // Does not start it. BackendError if this machine has none.
  static void load();
  // Loads it: "Open MPI v4.1.4", "MPICH 4.0.2"
  static std::string version();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Whether all MPI processes run on this host.
  bool one_host() const { return one_host_; }

  // Returns rank 0's text on all ranks. Collective, blocking.
  std::string broadcast(std::string text);

  // Hold it during every MPI call: it locks if MPI itself does not.
  std::unique_lock<std::mutex> lock();

  // Brackets an operation that must end before MPI may be finalized.
  static void begin_use() { ++in_use_; }
  static void end_use() { --in_use_; }

  // Runs `function`, which blocks in MPI until all ranks take part, since MPI has no deadlines;
  // calls look() every 200 ms meanwhile. TimeoutError if the function does not return by the
  // deadline. Then, or if look() throws, the function stays behind in its thread, and MPI is not
  // finalized.
  template <class Function>
  static auto in_time(
      const Deadline& deadline, Function function, const std::function<void()>& look = [] {})
      -> std::invoke_result_t<Function> {
    constexpr std::chrono::milliseconds poll_interval(200);
    auto result = ask_in_thread(std::move(function));
    const auto ready_within = [&](std::chrono::milliseconds span) {
      return result.wait_for(span) == std::future_status::ready;
    };
    while (!ready_within(std::min(deadline.remaining(), poll_interval))) {
      try {
        look();
        if (deadline.passed()) throw_late(deadline);
      } catch (...) {
        begin_use();
        throw;
      }
    }
    return result.get();
  }

 private:
  MpiLibrary();
  [[noreturn]] static void throw_late(const Deadline& deadline);

  int rank_ = 0;
  int size_ = 1;
  bool one_host_ = true;
  bool locks_itself_ = true;
  static inline std::atomic<int> in_use_ = 0;
  std::mutex mutex_;
};

// The rendezvous of ranks that mpirun started without an address: sets the member's store and
// address, since MPI broadcasts where rank 0 listens. Collective and blocking; TimeoutError after
// the store's timeout.
void rendezvous_by_mpi(Membership& member, TcpStoreOptions store_options);

}  // namespace lockstep
