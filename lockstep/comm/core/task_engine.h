// SPDX-License-Identifier: BSD-3-Clause
// An engine carries out the tasks of a group; a task is one rank's part of one call, for one
// tensor.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/core/progress.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

class Task {
 public:
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // The call that ranks compare and messages name.
  const Call& call() const { return call_; }
  void number(std::uint64_t number) { call_.number = number; }

  // Once true, no rank touches this rank's tensor any more.
  bool done() const { return done_.load(std::memory_order_acquire); }
  void mark_done() { done_.store(true, std::memory_order_release); }

 protected:
  explicit Task(const Call& call) : call_(call) {}
  void replace_call(const Call& call) { call_ = call; }

 private:
  Call call_;
  std::atomic<bool> done_ = false;
};

// Carries out tasks. Thread-safe.
class TaskEngine : public Progressing {
 public:
  // Advances as far as possible without waiting; true if the task is done.
  virtual bool poll(Task& task) = 0;
  // What waits: the calling thread, or, if possible, its current stream on the device.
  enum class Waiting { thread, thread_or_stream };
  // Blocks until the task is done. TimeoutError and PeerLost name the rank waited for.
  virtual void wait(Task& task, const Deadline& deadline, Waiting who) = 0;
};

}  // namespace lockstep
