// SPDX-License-Identifier: BSD-3-Clause
// The threads in which the replicas of a DataParallel run, one for each but the one that the caller
// runs itself. They are started when they are first needed, and kept. Also counts what passes
// between replicas, since it is what forward and the graphs that outlive it have in common.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"

namespace lockstep {

// A replica's forward or backward threw. The message names the replica and has the first line of
// what it threw, which cause() holds: std::rethrow_exception(error.cause()).
class ReplicaFailed : public Error {
 public:
  ReplicaFailed(int replica, std::exception_ptr cause, const std::string& message)
      : Error(message), replica_(replica), cause_(std::move(cause)) {}
  int replica() const { return replica_; }
  const std::exception_ptr& cause() const { return cause_; }

 private:
  int replica_;
  std::exception_ptr cause_;
};

class ReplicaWorkers {
 public:
  ReplicaWorkers() = default;
  ReplicaWorkers(const ReplicaWorkers&) = delete;
  ReplicaWorkers& operator=(const ReplicaWorkers&) = delete;
  // Joins the threads.
  ~ReplicaWorkers();

  // Runs job(0) to job(count - 1) at once, but those of the caller one after another in the calling
  // thread, and returns when all have ended; then throws ReplicaFailed for the lowest number whose
  // job threw. Each job has the caller's grad mode, inference mode and autocast state, an equal
  // part of its intra-op threads, and leaves no trace of them behind. What runs is named in errors:
  // "forward".
  //
  // Calls from several threads come one after another. UsageError from within a job.
  void run(const char* what, int count, const std::function<void(int)>& job,
           const std::vector<int>& callers = {0});

  // Counts bytes that passed between replica 0 and another one. From any thread.
  void count_moved(const at::Tensor& tensor, int replica);
  void count_moved(std::uint64_t bytes) { bytes_moved_ += bytes; }
  std::uint64_t bytes_moved() const { return bytes_moved_; }

  // Joins the threads; from then on run() runs one job after another in the calling thread. Not
  // while another thread is in run().
  void stop();

 private:
  struct Round;

  void serve(int worker, std::uint64_t rounds_seen);
  void start_threads(int count);
  void perform(Round& round, int index);

  std::atomic<std::uint64_t> bytes_moved_ = 0;
  std::mutex one_run_;
  std::mutex mutex_;  // of all below; what is atomic may be looked at without it
  std::condition_variable begun_;
  std::condition_variable ended_;
  std::atomic<std::uint64_t> rounds_ = 0;
  Round* round_ = nullptr;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> have_cores_ = false;  // one for each thread
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
