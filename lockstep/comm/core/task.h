// SPDX-License-Identifier: BSD-3-Clause
// An engine's unit of work: one rank's part of one call, for one tensor.
#pragma once

#include <atomic>
#include <cstdint>

#include "lockstep/comm/core/call.h"

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

}  // namespace lockstep
