// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/comm/remote/abort_error.h"

#include "lockstep/core/error.h"

namespace lockstep::remote {

std::exception_ptr abort_error(const PeerMonitor::Abort& abort, const std::string& message) {
  switch (abort.cause) {
    case AbortCause::timed_out:
      return std::make_exception_ptr(TimeoutError(message, abort.lost_rank));
    case AbortCause::mismatched:
      return std::make_exception_ptr(UsageError(message));
    case AbortCause::lost:
      return std::make_exception_ptr(PeerLost(abort.lost_rank, message));
    case AbortCause::left:
      return std::make_exception_ptr(PeerLost(abort.lost_rank, message, PeerLost::How::left));
    default:
      return std::make_exception_ptr(PeerLost(abort.rank, message));
  }
}

}  // namespace lockstep::remote
