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

// How long the first wait for a rank lasts, before a look whether all of them live.
constexpr std::chrono::milliseconds kFirstTurn(250);

// Calls wait(deadline), which throws TimeoutError at its deadline, again and again, and between the
// calls looks whether all ranks live. The calls become longer, up to `longest`: where the store may
// be far away, one that is shorter than the way there and back never succeeds.
template <class Wait>
auto watched_wait(const Membership& membership, const Deadline& deadline, const Wait& wait,
                  std::chrono::milliseconds longest = std::chrono::seconds(2)) {
  for (std::chrono::milliseconds turn = kFirstTurn;; turn = std::min(2 * turn, longest)) {
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
