// SPDX-License-Identifier: BSD-3-Clause
// Decides by the error's type whether to add the hint.
#include "lockstep/parallel/uneven_batches.h"

#include "lockstep/core/error.h"
#include "lockstep/core/rethrow.h"

namespace lockstep {
namespace {

constexpr const char* kHint =
    ". If no rank reports an error of its own, they may have different numbers of batches: give "
    "every rank the same number (DistributedSampler pads or drops), or train inside lockstep::join";

// Whether different numbers of batches can be the cause: not if a rank died or the system refused.
bool may_be_batches() {
  try {
    throw;
  } catch (const PeerLost& error) {
    return error.how() == PeerLost::How::left;
  } catch (const BackendError&) {
    return false;
  } catch (...) {
    return true;
  }
}

}  // namespace

void rethrow_with_hint_at_batches(const std::string& before) {
  rethrow_with(before, may_be_batches() ? kHint : "");
}

}  // namespace lockstep
