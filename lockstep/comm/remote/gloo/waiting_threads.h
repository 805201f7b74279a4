// SPDX-License-Identifier: BSD-3-Clause
// A reused pool of threads for blocking functions, capped if wanted.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::gloo {

class WaitingThreads {
 public:
  explicit WaitingThreads(std::size_t most = std::numeric_limits<std::size_t>::max())
      : most_(most) {}
  // Joins all threads; functions must end by themselves.
  ~WaitingThreads();

  // Runs the function on a free thread, at once or when one is free.
  void run(std::function<void()> function);

 private:
  void work();

  const std::size_t most_;
  std::mutex mutex_;
  std::condition_variable there_is_more_;
  std::deque<std::function<void()>> functions_;
  std::size_t idle_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::gloo
