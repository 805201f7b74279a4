// SPDX-License-Identifier: BSD-3-Clause
// The error of a DataParallel whose replica threw.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep {

// A replica's forward or backward threw. The message names the replica and contains the first line
// of the original exception, which cause() holds: std::rethrow_exception(error.cause()).
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

}  // namespace lockstep
