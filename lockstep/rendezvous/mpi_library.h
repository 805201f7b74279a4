// SPDX-License-Identifier: BSD-3-Clause
// This process as MPI sees it. MPI is started when it is first asked for, and ended with the
// process if nothing is left half done.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "lockstep/core/deadline.h"
#include "lockstep/core/service_thread.h"

namespace lockstep {

class MpiLibrary {
 public:
  // Starts MPI, unless the program has done so. BackendError if this Lockstep was built without
  // MPI, or MPI cannot be used from the calling thread.
  static MpiLibrary& get();

  // "Open MPI v4.1.4", "MPICH 4.0.2"
  static std::string version();
  static bool built_in();

  int rank() const { return rank_; }
  int size() const { return size_; }
  // Whether all its processes run on this host.
  bool one_host() const { return one_host_; }

  // What rank 0 says reaches all. Collective, blocking.
  std::string broadcast(std::string text);

  // To be held during every call of MPI's: it locks where MPI does not do so itself.
  std::unique_lock<std::mutex> lock();

  // Something was begun that must be ended before MPI is.
  static void begin_use() { ++in_use_; }
  static void end_use() { --in_use_; }

  // Runs a function that has MPI wait for all ranks, for which MPI knows no deadline, and calls
  // look() several times a second meanwhile. TimeoutError if the function is not back by the
  // deadline: then, or if look() throws, it stays behind in its thread, and MPI is not ended with
  // the process.
  template <class Function>
  static auto in_time(
      const Deadline& deadline, Function function, const std::function<void()>& look = [] {})
      -> std::invoke_result_t<Function> {
    constexpr std::chrono::milliseconds between_looks(200);
    auto result = ask_in_thread(std::move(function));
    const auto ready_within = [&](std::chrono::milliseconds span) {
      return result.wait_for(span) == std::future_status::ready;
    };
    while (!ready_within(std::min(deadline.remaining(), between_looks))) {
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

}  // namespace lockstep
