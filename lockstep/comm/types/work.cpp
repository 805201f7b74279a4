// SPDX-License-Identifier: BSD-3-Clause
// The wait for a collective, which traces show.
#include "lockstep/comm/types/work.h"

#include "lockstep/core/trace_span.h"

namespace lockstep {

void Work::wait(const Deadline& deadline) {
  if (operation_) {
    const TracedSpan span("wait");
    operation_->wait(deadline);
  }
  operation_.reset();
}

}  // namespace lockstep
