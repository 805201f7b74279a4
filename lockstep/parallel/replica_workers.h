// SPDX-License-Identifier: BSD-3-Clause
// The threads that run the replicas of a DataParallel, one for each replica that the caller does
// not run itself. Started when first needed, and kept. Also counts the bytes moved between
// replicas, since forward and the graphs that outlive it both use this object.
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

namespace lockstep {

class ReplicaWorkers {
 public:
  ReplicaWorkers() = default;
  ReplicaWorkers(const ReplicaWorkers&) = delete;
  ReplicaWorkers& operator=(const ReplicaWorkers&) = delete;
  // Joins the threads.
  ~ReplicaWorkers();

  // Runs job(0) to job(count - 1) concurrently, those in `callers` one after another in the calling
  // thread. Returns when all have ended, or throws ReplicaFailed for the lowest number whose job
  // threw. Each job gets the caller's grad mode, inference mode and autocast state and an equal
  // share of its intra-op threads; all are restored afterwards. `what` names the jobs in errors:
  // "forward".
  //
  // Concurrent calls run one after another. UsageError from within a job.
  void run(const char* what, int count, const std::function<void(int)>& job,
           const std::vector<int>& callers = {0});

  // Counts bytes moved between replica 0 and another one. Thread-safe.
  void count_moved(const at::Tensor& tensor, int replica);
  void count_moved(std::uint64_t bytes) { bytes_moved_ += bytes; }
  std::uint64_t bytes_moved() const { return bytes_moved_; }

  // Joins the threads; later calls of run() run all jobs in the calling thread. Must not overlap
  // with run().
  void stop();

 private:
  struct Round;

  void serve(int worker, std::uint64_t rounds_seen);
  void start_threads(int count);
  void perform(Round& round, int index);

  std::atomic<std::uint64_t> bytes_moved_ = 0;
  std::mutex one_run_;
  std::mutex mutex_;  // guards the members below; atomic ones may be read without it
  std::condition_variable begun_;
  std::condition_variable ended_;
  std::atomic<std::uint64_t> rounds_ = 0;
  Round* round_ = nullptr;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> have_cores_ = false;  // one per thread
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
