// SPDX-License-Identifier: BSD-3-Clause
// Public. A collective that has been started. Follows torch.distributed's Work, but owns its
// tensors.
#pragma once

#include <memory>

#include "lockstep/core/deadline.h"

namespace lockstep {

// A backend's state of a collective that is under way. It holds the tensors until it is done.
class Operation {
 public:
  virtual ~Operation() = default;

  // Returns, without making progress, whether wait() has nothing left to do.
  virtual bool finished() const { return false; }

  // Advances without blocking; true once the results are ready. Throws the collective's error. A
  // hierarchical group may take up to a second to find the rank at fault before it throws.
  virtual bool poll() = 0;

  // Blocks until poll() would return true; on a device, only its stream may block.
  // Throws the collective's error, as Work::wait does; TimeoutError at the deadline.
  virtual void wait(const Deadline& deadline) = 0;

  // The deadline for a wait whose caller gives none.
  virtual Deadline default_deadline() const = 0;
};

// Move-only. The destructor waits and does not throw; the group's next call throws any error.
class [[nodiscard]] Work {
 public:
  // Completed work.
  Work() = default;
  explicit Work(std::shared_ptr<Operation> operation) : operation_(std::move(operation)) {}
  Work(Work&&) noexcept = default;
  Work& operator=(Work&& other) noexcept {
    if (this != &other) {
      finish();
      operation_ = std::move(other.operation_);
    }
    return *this;
  }
  ~Work() { finish(); }

  // Does not block; true once the results are ready. Throws the collective's error, which in a
  // hierarchical group may take up to a second.
  bool poll() { return !operation_ || operation_->poll(); }
  // Blocks until the results are ready, at most until the group's timeout or the deadline. Throws
  // PeerLost, UsageError for calls that differ between ranks, BackendError if the network or the
  // system fails, and TimeoutError; after any of them the group is unusable. On nccl only the GPU's
  // current stream waits, unless TORCH_NCCL_BLOCKING_WAIT=1, and the group's next call may be what
  // throws.
  void wait() {
    // Reading the clock takes as long as a small sum, so finished work skips it.
    if (operation_ && operation_->finished()) operation_.reset();
    if (operation_) wait(operation_->default_deadline());
  }
  void wait(const Deadline& deadline);

 private:
  void finish() noexcept {
    try {
      wait();
    } catch (...) {  // the group keeps the error
      operation_.reset();
    }
  }

  std::shared_ptr<Operation> operation_;
};

}  // namespace lockstep
