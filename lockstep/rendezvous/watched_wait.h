// SPDX-License-Identifier: BSD-3-Clause
// How a rank waits for others while they join: it looks whether all of them are alive.
#pragma once

#include <algorithm>
#include <chrono>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

// Throws PeerLost if the process of a rank is known to have ended.
void check_all_live(const Membership& membership);

// Calls wait(deadline), which throws TimeoutError at its deadline, for a quarter of a second at
// first. Between the calls it looks whether all ranks live. The calls become longer where the store
// may be far away: one that is shorter than the way there and back never succeeds.
template <class Wait>
auto watched_wait(const Membership& membership, const Deadline& deadline, const Wait& wait) {
  using namespace std::chrono_literals;
  const std::chrono::milliseconds longest = membership.address.empty() ? 250ms : 2000ms;
  for (std::chrono::milliseconds turn = 250ms;; turn = std::min(2 * turn, longest)) {
    const bool last = deadline.remaining() <= turn;
    try {
      return wait(last ? deadline : Deadline::after(turn));
    } catch (const TimeoutError&) {
      if (last) throw;
    } catch (const StoreLost&) {
      // Rank 0 may have ended because another rank did.
      check_all_live(membership);
      throw;
    }
    check_all_live(membership);
  }
}

}  // namespace lockstep
