// SPDX-License-Identifier: BSD-3-Clause
// Decides by the error, and by what the other rank called, which hint to add.
#include "lockstep/parallel/uneven_batches.h"

#include <fmt/format.h>

#include "lockstep/comm/core/calls_differ.h"
#include "lockstep/core/error.h"
#include "lockstep/core/rethrow.h"

namespace lockstep {
namespace {

constexpr const char* kSameNumber =
    "give every rank the same number (DistributedSampler pads or drops), or train inside "
    "lockstep::join";

// Empty if different numbers of batches cannot be the cause: a rank died, or the system refused.
std::string hint() {
  const std::string general = fmt::format(
      ". If no rank reports an error of its own, they may have different numbers of batches: {}",
      kSameNumber);
  try {
    throw;
  } catch (const PeerLost& error) {
    return error.how() == PeerLost::How::left ? general : "";
  } catch (const BackendError&) {
    return "";
  } catch (const CallsDiffer& error) {
    const CallOrigin others = error.peers_call().origin;
    if (others == CallOrigin::program || is_of_step(others)) return general;
    return fmt::format(". Or rank {} came to {} since it has fewer batches: {}", error.peer(),
                       name(others), kSameNumber);
  } catch (...) {
    return general;
  }
}

}  // namespace

void rethrow_with_hint_at_batches(const std::string& before) {
  rethrow_with(before, hint());
}

}  // namespace lockstep
