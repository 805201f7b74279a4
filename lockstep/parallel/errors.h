// SPDX-License-Identifier: BSD-3-Clause
// Public. The exceptions of the wrappers: what a step with DistributedDataParallel, a Reducer or
// DataParallel throws beside the errors of every call (error.h).
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

// Gradients have infinite or NaN elements. Backward throws this on every rank after all gradients
// have been reduced, so the group and the model can be used again. Clear the gradients before the
// next backward, and do not step with them.
class NonFiniteGradient : public ErrorType<NonFiniteGradient> {
 public:
  using ErrorType::ErrorType;
};

// The ranks have different parameters, buffers or gradients.
class OutOfSync : public ErrorType<OutOfSync> {
 public:
  using ErrorType::ErrorType;
};

// The forward or backward of a replica threw. The message names the replica and contains the first
// line of the original exception, which cause() holds: std::rethrow_exception(error.cause()).
class ReplicaFailed : public ErrorType<ReplicaFailed> {
 public:
  ReplicaFailed(int replica, std::exception_ptr cause, ErrorDetails details)
      : ErrorType(std::move(details)), replica_(replica), cause_(std::move(cause)) {}
  int replica() const { return replica_; }
  const std::exception_ptr& cause() const { return cause_; }

 private:
  int replica_;
  std::exception_ptr cause_;
};

}  // namespace lockstep
