// SPDX-License-Identifier: BSD-3-Clause
// Streams of work that are threads, and events in them, as CUDA has them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace lockstep::testing {

class ThreadStream {
 public:
  // Behind what was enqueued before.
  void enqueue(std::function<void()> work);
  void synchronize();
  bool idle();
  // Nothing will be enqueued any more.
  void end();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  bool busy_ = false;
  bool started_ = false;
  bool ending_ = false;
};

// By a number; each has a thread from its first work on.
ThreadStream& thread_stream(int number);

class StreamEvent {
 public:
  void record(ThreadStream& stream);
  void block(ThreadStream& stream) const;
  // Of what was recorded last.
  bool done() const { return *done_; }

 private:
  std::shared_ptr<std::atomic<bool>> done_ = std::make_shared<std::atomic<bool>>(true);
};

}  // namespace lockstep::testing
