// SPDX-License-Identifier: BSD-3-Clause
// Threads that wait: for each function its own, kept for the next one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {

class WaitingThreads {
 public:
  WaitingThreads() = default;
  // Joins all; functions end by themselves.
  ~WaitingThreads();

  // Runs it at once, on a thread that has nothing else to do.
  void run(std::function<void()> function);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable there_is_more_;
  std::deque<std::function<void()>> functions_;
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep
