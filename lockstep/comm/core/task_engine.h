// SPDX-License-Identifier: BSD-3-Clause
// An engine carries out the tasks of a group; a task is one rank's part of one call, for one
// tensor. A wait on one group advances all groups of this process, so that a call on one group and
// a wait on another cannot block each other.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/deadline.h"

namespace lockstep {

// A futex in memory that several processes may share. Whoever changes something that the owner may
// wait for increments `rings` and wakes the owner.
struct Doorbell {
  std::atomic<std::uint32_t> rings;
  // The number of the owner's threads that sleep or are about to.
  std::atomic<std::uint32_t> sleepers;
};

class Progressing {
 public:
  virtual ~Progressing() = default;

  // Advances as far as possible without waiting; does nothing if another thread is doing so. Errors
  // are kept for the callers that wait. True if anything moved.
  virtual bool try_advance() = 0;
  // The doorbell that rings when there may be more to do; null if idle, or if this group
  // has no doorbell.
  virtual Doorbell* doorbell_if_busy() = 0;
};

// A process has one list, shared by all threads. These functions are thread-safe.

// Keeps the object on the list until it is destroyed.
void share_progress(const std::shared_ptr<Progressing>& progressing);
// True if anything moved.
bool advance_others(const Progressing& self);

// What else is under way, kept alive while a thread sleeps on its doorbells.
struct OthersBusy {
  std::vector<std::shared_ptr<Progressing>> owners;
  std::vector<Doorbell*> doorbells;
};
OthersBusy others_busy(const Progressing& self);

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
