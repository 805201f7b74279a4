// SPDX-License-Identifier: BSD-3-Clause
// Maps the cause of an abort to the type of the error that the other ranks throw.
#include "lockstep/comm/core/abort_notice.h"

#include "lockstep/core/error.h"

namespace lockstep {

std::exception_ptr error_of(const AbortNotice& notice, const std::string& message) {
  switch (notice.cause) {
    case AbortCause::timed_out:
      return std::make_exception_ptr(TimeoutError(message, notice.lost_rank));
    case AbortCause::mismatched:
      return std::make_exception_ptr(UsageError(message));
    case AbortCause::lost:
      return std::make_exception_ptr(PeerLost(notice.lost_rank, message));
    case AbortCause::left:
      return std::make_exception_ptr(PeerLost(notice.lost_rank, message, PeerLost::How::left));
    case AbortCause::requested:
    case AbortCause::none:
      break;
  }
  return std::make_exception_ptr(PeerLost(notice.rank, message));
}

}  // namespace lockstep
